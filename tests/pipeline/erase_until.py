"""A process that erases a key and kills itself when a step was done a number of times.

Arguments: LAKE KEY STEP TIMES.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline import durable
from fairlead.pipeline.erase import files
from fairlead.pipeline.jobs import erase as job
from fairlead.pipeline.lake import ledger
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import LakeTable

KILLED = 9

STEPS: dict[str, tuple[Any, str]] = {
    "tombstone": (job, "bury"),
    "traced": (job, "trace"),
    "build requested": (job, "build_again"),
    "ledger written": (ledger, "write"),
    "temporary file written": (durable, "sync"),
    "file rewritten": (LakeTable, "write_part"),
    "partition replaced": (LakeTable, "replace"),
    "table done": (job, "erase_from"),
    "file removed": (Path, "unlink"),
    "purged": (job, "purge"),
    "verified": (job, "verify"),
}
"""Function whose return ends a step, by step."""


def main(lake: str, key: str, step: str, times: str) -> None:
    owner, name = STEPS[step]
    real, taken = getattr(owner, name), 0

    def then_dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        result = real(*args, **kwargs)
        taken += 1
        if taken == int(times):
            os._exit(KILLED)
        return result

    if step == "file removed":
        # Temporary files are unlinked too, once they are renamed. Count only the removal of files
        # that held the key, which `purge` does.
        purge = files.purge

        def purged(*args: Any) -> Any:
            setattr(owner, name, then_dies)
            return purge(*args)

        job.purge = purged
    else:
        setattr(owner, name, then_dies)
    job.erase(Lake(lake), key, SYSTEM_CLOCK)


if __name__ == "__main__":
    main(*sys.argv[1:])
