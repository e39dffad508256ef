"""Statements of the work of people, in a folder for each dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from fairlead.backends.sql import sql_file
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps

T = TypeVar("T")


class StatementFile:
    """Base of a store whose statements are in a file of each dialect."""

    def __init__(self, file_name: str, database: SqlDatabase) -> None:
        self._sql = load(file_name, database)

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


class AgingRows(StatementFile):
    """Base of a store whose rows are deleted some time after they were made or have ended."""

    def has_old(self, before: int) -> Steps[bool]:
        """Return whether a row was made, or has ended, before this instant."""
        return bool((yield self._statement("has_old", before)))

    def clean(self, before: int, limit: int) -> Steps[int]:
        """Delete at most `limit` of these rows; return how many."""
        return len((yield self._statement("clean", before, limit)))


def load(file_name: str, database: SqlDatabase) -> dict[str, str]:
    """Return the statements of a file in the dialect of a database, by name."""
    return sql_file.load(f"{database.dialect}/{file_name}", __name__.rpartition(".")[0])


def record(kind: type[T], columns: Sequence[str], row: Row, **made: Any) -> T:
    """Return a row with these columns as a struct; `made` are fields that are read already."""
    fields = dict(zip(columns, row, strict=True)) | made
    return msgspec.convert(fields, kind, strict=False)
