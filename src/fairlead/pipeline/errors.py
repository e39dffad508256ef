"""Errors of the pipeline, each with its cause and cure."""

from __future__ import annotations

import re
import sys

from fairlead.errors import FairleadError

_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
"""Messages of the errors in a trace of Java, the first cause last."""

_OURS = re.compile(r"(fairlead(?:\.[a-z_]+)+)\.(\w+): (.+)")

RESTORE = "restore the files of the lake from a copy, or run `fairlead pipeline restore`"
"""Cure of a lake that has lost its catalog or metadata."""

RESTORE_FILE = (
    "restore it from a copy of the lake, or drop its rows: `fairlead pipeline restore"
    " --drop-damaged`, then `fairlead pipeline build --full`"
)
"""Cure of a missing or damaged data file."""


class BrokenLake(FairleadError):
    """A file of the lake is missing, truncated, or different from its metadata. The text names file
    and column."""


class LakeInUse(FairleadError):
    """Another process builds, erases or restores the lake. The text names it and its start."""


class CheckFailed(FairleadError):
    """A count in the lake differs from the expected one. The text names the check and both
    counts."""


class RefusedRows(FairleadError):
    """Rows that cannot become tasks. The text names row, column and reason."""


def fairlead_error(error: Exception) -> FairleadError | None:
    """Return `error` if it is a FairleadError, or the FairleadError that another process of Spark
    failed with; None if there is none."""
    if isinstance(error, FairleadError):
        return error
    for module, name, text in reversed(_OURS.findall(str(error))):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, FairleadError):
            return kind(text.strip())
    return None


def java_cause(error: Exception) -> str:
    """Return the message of the first cause of an error of Spark."""
    return str((_CAUSE.findall(str(error)) or str(error).splitlines())[-1])
