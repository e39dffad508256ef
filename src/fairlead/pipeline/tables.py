"""The tables as Spark reads and replaces them: Parquet under our manifests, or Iceberg in a
catalog.

Only `parquet` and `iceberg` know formats. What a job writes is read back by the same job at once;
others see it when the job publishes, all of it having passed the checks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from fairlead.clock import Clock
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.schema import Table


class Tables(Protocol):
    """Where the tables are. A partition is named `2026-11-21/13` (an hour) or `2026-11-21` (a
    date)."""

    def read(self, table: Table, parts: Collection[str] | None = None) -> DataFrame:
        """The rows of these partitions, of all by default, with the table's columns; none when
        there is no such table."""

    def replace(self, table: Table, rows: DataFrame, parts: Collection[str] | None = None) -> int:
        """Let these partitions hold exactly `rows` (which lie in them), or let the whole table;
        answers how many rows."""

    def parts(self, table: Table) -> list[str]:
        """The partitions that have rows."""

    def publish(self) -> None:
        """Show others what was replaced. Raises BrokenLake when somebody else has replaced the same
        meanwhile."""

    def land(self, table: Table, parts: Collection[str] | None = None) -> None:
        """Take over what the exporter wrote for these partitions, all by default; again is
        harmless."""


def lake_tables(spark: SparkSession, lake: Lake, catalog: str | None, clock: Clock) -> Tables:
    """The tables of a lake's folder, or, with a catalog, those of Iceberg there."""
    if catalog is None:
        from fairlead.pipeline.parquet import ParquetTables

        return ParquetTables(spark, lake, clock)
    from fairlead.pipeline.iceberg import IcebergTables

    return IcebergTables(spark, catalog, lake, clock)
