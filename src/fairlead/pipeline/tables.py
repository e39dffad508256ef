"""Tables as Spark reads and replaces them: Parquet under our manifests, or Iceberg in a catalog.

Only `parquet` and `iceberg` know formats. A job reads back its own writes at once; others see them
when the job publishes, after all checks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from fairlead.clock import Clock
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.schema import Table


class Tables(Protocol):
    """Tables of a lake or catalog. A partition is named `2026-11-21/13` (an hour) or `2026-11-21`
    (a date)."""

    def read(self, table: Table, parts: Collection[str] | None = None) -> DataFrame:
        """Return the rows of these partitions, all by default, with the table's columns; no rows if
        the table does not exist."""

    def replace(self, table: Table, rows: DataFrame, parts: Collection[str] | None = None) -> int:
        """Replace these partitions, or the whole table, by `rows` that lie in them; return the
        number of rows."""

    def parts(self, table: Table) -> list[str]:
        """Return the partitions with rows."""

    def publish(self) -> None:
        """Publish the replaced partitions. Raise BrokenLake when another job has replaced the same
        ones meanwhile."""

    def land(self, table: Table, parts: Collection[str] | None = None) -> None:
        """Take over what the exporter wrote for these partitions, all by default; a repeated call
        changes nothing."""


def lake_tables(spark: SparkSession, lake: Lake, catalog: str | None, clock: Clock) -> Tables:
    """Return the tables of a lake's folder or, with a catalog, those of Iceberg."""
    if catalog is None:
        from fairlead.pipeline.parquet import ParquetTables

        return ParquetTables(spark, lake, clock)
    from fairlead.pipeline.iceberg import IcebergTables

    return IcebergTables(spark, catalog, lake, clock)
