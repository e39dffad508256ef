"""Statements of the work of people, in a folder for each dialect."""

from __future__ import annotations

from fairlead.backends.sql import sql_file
from fairlead.ports.statements import SqlDatabase


def load(file_name: str, database: SqlDatabase) -> dict[str, str]:
    """Return the statements of a file in the dialect of a database, by name."""
    return sql_file.load(f"{database.dialect}/{file_name}", __name__.rpartition(".")[0])
