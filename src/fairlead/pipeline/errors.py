"""What can go wrong in the pipeline, each with its cause and its cure."""

from __future__ import annotations

from fairlead.errors import FairleadError


class BrokenLake(FairleadError):
    """A file of the lake is missing, cut off, or not what its table says: names the file and the
    column."""


class CheckFailed(FairleadError):
    """The numbers do not add up: names the check, what was expected and what was found."""


class RefusedRows(FairleadError):
    """Rows that cannot become tasks: names row, column and reason."""
