"""Views of the tables of a lake, over the files of the snapshots that readers see."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.config import catalog_of
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.extra import need
from fairlead.pipeline.reading.engine import (
    MEMORY,
    as_our_errors,
    close_outside,
    empty,
    file_names,
    patterns,
    quoted,
    reach,
    reader_of,
    start,
)
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import duckdb

    from fairlead.pipeline.warehouse.warehouse import Warehouse


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

    seen = Snapshots(warehouse).look(tables)
    connection = start(memory, threads)
    store = reach(connection, warehouse)
    for schema in dict.fromkeys(table.name.partition(".")[0] for table in TABLES):
        connection.execute(f"CREATE SCHEMA {schema}")
    for table, at in seen.tables.items():
        if store is not None:
            store.replace(table.name, at)
        literals = f"[{', '.join(map(quoted, patterns(file_names(at))))}]"
        rows = f"FROM {reader_of(table, literals)}" if at.files else empty(table)
        with as_our_errors(memory):
            connection.execute(f"CREATE VIEW {table.name} AS {rows}")
    close_outside(connection, [name for at in seen.tables.values() for name in file_names(at)])
    return connection
