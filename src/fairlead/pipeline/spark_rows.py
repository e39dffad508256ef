"""Rows of a table as Spark reads and writes them in Iceberg: its columns, and conditions by which
Iceberg skips the files of other partitions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.clock import to_micros
from fairlead.pipeline import partitions as p
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.layout import LAST_US


def typed(table: Table, rows: DataFrame) -> DataFrame:
    """Return stored rows with the table's types, because Iceberg has no small integers."""
    return rows.select(*[F.col(c.name).cast(c.type).alias(c.name) for c in table.columns])


def placed(table: Table, rows: DataFrame, parts: Collection[str] | None) -> DataFrame:
    """Return the table's columns of these rows; a row outside the partitions fails the job before
    its commit."""
    if parts is None:
        return rows.select(*table.column_names)
    instant = F.col(table.instant)
    stray = F.concat(
        F.lit(
            f"{table.name}: a row lies outside the partitions to be replaced: its"
            f" {table.instant} is "
        ),
        F.coalesce(instant.cast("string"), F.lit("null")),
    )
    # Fail inside a column, not a filter: the optimizer would apply a filter to rows that a join
    # drops.
    checked = (
        F.when(during(table, parts), instant).otherwise(F.raise_error(stray)).alias(table.instant)
    )
    return rows.select(
        *[checked if name == table.instant else F.col(name) for name in table.column_names]
    )


def during(table: Table, parts: Collection[str] | None) -> Column:
    """Return a condition for the rows of these partitions of a table."""
    if not parts:
        return F.lit(parts is None)
    inside = within(table.instant, parts)
    if all(p.micros_of(part) for part in parts):
        return inside
    # Rows without an instant, and those of a wrong clock, belong to the first partition.
    instant = F.col(table.instant)
    return (
        inside
        | instant.isNull()
        | (instant < F.timestamp_micros(F.lit(0)))
        | (instant > F.timestamp_micros(F.lit(LAST_US)))
    )


def within(instant: str, parts: Collection[str] | None) -> Column:
    """Return a condition for an instant in these hours or dates; None for all instants."""
    return overlapping([instant], instant, parts)


def overlapping(begins: Sequence[str], end: str, parts: Collection[str] | None) -> Column:
    """Return a condition for the time from the least of the instants `begins` to the instant `end`,
    which has a part in these hours or dates. A null among `begins` does not count.

    Iceberg skips files by this condition, because it compares columns with constants only.
    """
    if parts is None:
        return F.lit(True)
    return _any([_meets(begins, end, *run) for run in p.runs_of(parts)])


def _meets(begins: Sequence[str], end: str, since: datetime, until: datetime) -> Column:
    low, high = (F.timestamp_micros(F.lit(to_micros(at))) for at in (since, until))
    return (F.col(end) >= low) & reduce(or_, [F.col(name) < high for name in begins])


def _any(conditions: Sequence[Column]) -> Column:
    """Return whether any condition holds, as a balanced tree, because Spark walks it
    recursively."""
    if len(conditions) < 2:
        return conditions[0] if conditions else F.lit(False)
    half = len(conditions) // 2
    return _any(conditions[:half]) | _any(conditions[half:])


def local_rows(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    """Return a few rows of Python, of which Spark knows before it plans how many they are: it joins
    them without a job, and leaves out a join with none."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    found = [dict(zip(schema.names, row, strict=True)) for row in rows]
    local: Any = pa.Table.from_pylist(found, to_arrow_schema(schema))
    return spark.createDataFrame(local, schema)
