"""Views of the tables of a lake, over the files that the newest manifests list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.lake import existing
from fairlead.pipeline.lake.manifest import Manifests
from fairlead.pipeline.reading.engine import (
    MEMORY,
    as_our_errors,
    close_outside,
    empty,
    patterns,
    quoted,
    reader_of,
    start,
)
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import duckdb

_MAKERS = {
    "gold.capacity": "capacity",
    "gold.incidents": "incidents",
    "gold.replays": "replay",
    "gold.replay_waits": "replay",
    "ops.pipeline_runs": "ingest",
}
"""Command of `fairlead pipeline` that makes a table. Else `ingest` makes bronze, and `build` makes
silver and gold."""


def maker_of(table: Table) -> str:
    """Return the command that makes a table."""
    layer = table.name.partition(".")[0]
    name = _MAKERS.get(table.name, "ingest" if layer == "bronze" else "build")
    return f"fairlead pipeline {name}"


def connect(
    lake: str | Path, *, memory: str = MEMORY, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with a view for each table of the lake, by its name
    (`gold.cost`), without Spark.

    The views show the lake as it is now; connect again to see later builds. Their files stay for 24
    hours after they are replaced, unless `erase` removes a key. The connection reaches
    the files of its views and nothing else, and its settings are locked. Do not write with it
    (COPY): run a text of somebody else by `fairlead.pipeline.reading.query.select`, which only
    reads. The function tenant_of(fairness_key) returns the tenant of a key.

    memory: bound of the memory of a query, as in "1GB". threads: default: the processors.

    Raise ConfigurationError if there is no lake in this folder or a library is missing, and
    BrokenLake for a damaged manifest or a missing file.
    """
    root = existing(lake)
    found = {
        table: Manifests(root / table.name)
        for table in TABLES
        if Manifests(root / table.name).numbers()
    }
    listed = {
        table: [
            str(root / table.name / file)
            for _, part in sorted(manifests.newest().parts.items())
            for file in part.files
        ]
        for table, manifests in found.items()
    }
    connection = start(memory, threads)
    for schema in dict.fromkeys(table.name.partition(".")[0] for table in TABLES):
        connection.execute(f"CREATE SCHEMA {schema}")
    for table, files in listed.items():
        literals = f"[{', '.join(map(quoted, patterns(files)))}]"
        rows = f"FROM {reader_of(table, literals)}" if files else empty(table)
        with as_our_errors(memory):
            connection.execute(f"CREATE VIEW {table.name} AS {rows}")
    close_outside(connection, [file for files in listed.values() for file in files])
    return connection
