"""Aggregations over the tables of a job, by statements that Spark and DuckDB understand: few rows
are read by DuckDB, because Spark plans and compiles for longer than it would read them."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.pipeline.partitions import PartsOf, all_parts
from fairlead.pipeline.reading.frames import Frames, tables_in, with_tables
from fairlead.pipeline.reading.snapshots import Seen, TableAt
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Build
from fairlead.pipeline.warehouse.location import flat_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.pipeline.warehouse_tables import WarehouseTables


class Tables(Protocol):
    """Tables of a lake in one of the engines."""

    keys_at_once: int
    """Number of hashes that fit into memory."""

    def totals(self, text: str, parts: PartsOf = all_parts) -> list[dict[str, Any]]:
        """Return the rows of an aggregation. `{gold.cost}` in the text stands for the rows of that
        table in the partitions that `parts` returns."""


class TablesOfJob:
    """Tables of a job, also those it has not published yet. DuckDB runs a statement that reads at
    most as many rows as it counts keys at once, and Spark any other."""

    keys_at_once = sys.maxsize

    def __init__(self, spark: SparkSession, tables: WarehouseTables) -> None:
        self._spark = spark
        self._tables = tables

    def totals(self, text: str, parts: PartsOf = all_parts) -> list[dict[str, Any]]:
        """Return the rows of an aggregation, as `Tables.totals` says. Raise BrokenLake."""
        found = {table: self._at(table, parts(table)) for table in tables_in(text)}
        read = {table: at for table, at in found.items() if at is not None}
        if sum(file.rows for at in read.values() for file in at.files) > Frames.keys_at_once:
            return self.on_spark(text, parts)
        with Frames(self._tables.warehouse, Seen(Build(), read)) as frames:
            return frames.totals(text)

    def on_spark(self, text: str, parts: PartsOf = all_parts) -> list[dict[str, Any]]:
        """Return the rows of an aggregation that Spark computes."""
        read: dict[str, Any] = {}

        def rows_of(table: Table) -> str:
            read[flat_name(table)] = self._tables.read(table, parts(table))
            return f"{{{flat_name(table)}}}"

        text = with_tables(text, rows_of)
        return [row.asDict() for row in self._spark.sql(text, **read).collect()]

    def _at(self, table: Table, parts: Collection[str] | None) -> TableAt | None:
        snapshot, here = self._tables.snapshot(table), self._tables.warehouse.table(table)
        state = here.state()
        if snapshot is None or state.stored is None:
            return None
        return TableAt(snapshot, 0, 0, here.files(parts, snapshot, state), state.stored.io)
