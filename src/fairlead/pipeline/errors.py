"""Errors of the pipeline, each with its cause and cure."""

from __future__ import annotations

from fairlead.errors import FairleadError


class BrokenLake(FairleadError):
    """A file of the lake is missing, truncated, or different from its metadata. The text names file
    and column."""


class CheckFailed(FairleadError):
    """A count in the lake differs from the expected one. The text names the check and both
    counts."""


class RefusedRows(FairleadError):
    """Rows that cannot become tasks. The text names row, column and reason."""
