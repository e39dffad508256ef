"""Errors of the pipeline, each with its cause and cure."""

from __future__ import annotations

from fairlead.errors import FairleadError


class BrokenLake(FairleadError):
    """A file of the lake is missing, truncated, or different from its manifest. The text names file
    and column."""


class CheckFailed(FairleadError):
    """Numbers do not agree. The text names the check, the expected and the found value."""


class RefusedRows(FairleadError):
    """Rows that cannot become tasks. The text names row, column and reason."""
