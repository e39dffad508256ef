"""One query of a person over the views of a lake, with errors that name the cure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import ConfigurationError
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.reading.engine import MEMORY, as_errors_of_a_person
from fairlead.pipeline.reading.snapshots import maker_of
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import duckdb

_BATCH = 1000
_DOT = re.compile(r"\s*\.\s*")


def tables_in(text: str) -> list[Table]:
    """Return the tables of the dictionary that a query may read: those whose names it has."""
    plain = _DOT.sub(".", text.replace('"', "").lower())
    return [table for table in TABLES if re.search(rf"\b{re.escape(table.name)}\b", plain)]


class Selected(NamedTuple):
    """Result of a query."""

    columns: list[str]
    """Names of the columns, each one once."""
    rows: Iterator[tuple[Any, ...]]
    """Rows, read from DuckDB when they are taken."""


def select(connection: duckdb.DuckDBPyConnection, text: str, memory: str = MEMORY) -> Selected:
    """Run one query over the views of `connect`: SELECT, FROM, WITH, VALUES, DESCRIBE or SUMMARIZE.

    Raise ConfigurationError for a wrong query, a text that is no single query, and a table that has
    not been made; BrokenLake for a damaged file.
    """
    import duckdb

    with as_errors_of_a_person(memory):
        try:
            # The text is a value here. As a statement of its own, a text that begins with WITH may
            # have parts that write: only `query` keeps to reading.
            cursor = connection.cursor().execute("FROM query($text)", {"text": text})
        except duckdb.CatalogException:
            _raise_if_not_made(connection, text)
            raise
        columns = [column[0] for column in cursor.description or ()]
    return Selected(columns, _rows(cursor, memory))


def _rows(cursor: duckdb.DuckDBPyConnection, memory: str) -> Iterator[tuple[Any, ...]]:
    while True:
        with as_errors_of_a_person(memory):
            rows = cursor.fetchmany(_BATCH)
        if not rows:
            return
        yield from rows


def _raise_if_not_made(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Raise ConfigurationError if the query names a table of the dictionary that has no view."""
    views = connection.execute(
        "SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal"
    ).fetchall()
    made = {name for (name,) in views}
    for table in tables_in(text):
        if table.name not in made:
            raise ConfigurationError(
                f"{table.name} has not been made in this lake: run `{maker_of(table)}`"
            )
