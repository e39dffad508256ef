"""Views of the tables of a lake, over the files of the snapshots that readers see, and a query of a
person over them, with errors that name the cure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import catalog_of
from fairlead.errors import ConfigurationError
from fairlead.pipeline.extra import need
from fairlead.pipeline.models import TABLES
from fairlead.pipeline.reading.engine import MEMORY, as_our_errors, file_names, opened, rows_of
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import duckdb

    from fairlead.pipeline.warehouse.warehouse import Warehouse

_BATCH = 1000
_DOT = re.compile(r"\s*\.\s*")


def connect(
    lake: str | Path,
    catalog: str | None = None,
    *,
    memory: str = MEMORY,
    threads: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with a view for each table of the lake, by its name
    (`gold.cost`), without Spark.

    The views show the newest build as it is now; connect again to see later ones. Their files stay
    for 24 hours after they are replaced, unless `erase` removes a key. The connection reaches
    the files of its views and nothing else, and its settings are locked. Do not write with it
    (COPY): run a text of somebody else by `fairlead.pipeline.reading.query.select`, which only
    reads. The function tenant_of(fairness_key) returns the tenant of a key.

    lake: folder, or URL of an object store, s3://bucket/prefix. catalog: URL of the catalog;
    default: FAIRLEAD_CATALOG, then the file catalog.db in the folder. memory: bound of the memory
    of a query, as in "1GB". threads: default: the processors.

    Raise ConfigurationError if there is no lake or a library is missing, BrokenLake for damaged
    metadata, and StoreUnavailable while the catalog cannot be reached.
    """
    return open_views(existing(lake, catalog), memory=memory, threads=threads)


def existing(lake: str | Path, catalog: str | None = None) -> Warehouse:
    """Return a lake that is only read, and so not made. Raise ConfigurationError."""
    need("duckdb", "pyiceberg", "pyarrow", "sqlalchemy")
    from fairlead.pipeline.warehouse.location import Location
    from fairlead.pipeline.warehouse.warehouse import Warehouse

    return Warehouse.existing(Location.of(lake, catalog_of(catalog)))


def open_views(
    warehouse: Warehouse,
    tables: Iterable[Table] = TABLES,
    *,
    memory: str = MEMORY,
    threads: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a connection as `connect` does, with views of these tables. Raise
    ConfigurationError, BrokenLake, StoreUnavailable."""
    from fairlead.pipeline.reading.snapshots import Snapshots

    seen = Snapshots(warehouse).read(tables)
    connection = opened(warehouse, seen.tables, memory, threads)
    for schema in dict.fromkeys(table.name.partition(".")[0] for table in TABLES):
        connection.execute(f"CREATE SCHEMA {schema}")
    for table, at in seen.tables.items():
        with as_our_errors(memory):
            connection.execute(f"CREATE VIEW {table.name} AS FROM {rows_of(table, file_names(at))}")
    return connection


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

    with as_our_errors(memory, of_person=True):
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
        with as_our_errors(memory, of_person=True):
            rows = cursor.fetchmany(_BATCH)
        if not rows:
            return
        yield from rows


def views_of(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Return the names of the tables that have a view."""
    views = connection.execute(
        "SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal"
    ).fetchall()
    return {name for (name,) in views}


def _raise_if_not_made(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Raise ConfigurationError if the query names a table of the dictionary that has no view."""
    made = views_of(connection)
    for table in tables_in(text):
        if table.name not in made:
            raise ConfigurationError(not_made(table))


def not_made(table: Table) -> str:
    """Return that a lake lacks a table, with the command that makes it."""
    from fairlead.pipeline.reading.snapshots import MAKERS

    maker = f"fairlead pipeline {MAKERS.get(table, 'build')}"
    return f"{table.name} has not been made in this lake: run `{maker}`"
