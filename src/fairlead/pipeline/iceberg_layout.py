"""The layout of a table in Iceberg: columns, and partitions by the hour or day of its instant."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fairlead.errors import ConfigurationError
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.lake import parts as p
from fairlead.pipeline.schema import Column as OurColumn
from fairlead.pipeline.schema import Table

_KEPT_AS = {"smallint": "int", "tinyint": "int"}
"""Types that Iceberg stores as longer integers; reads convert them back."""

_TRANSFORM = {"hour": "hours", "date": "days"}

_LAST_US = 253_402_300_799 * 1_000_000
"""The last second of the year 9999, in microseconds since the epoch."""


def create(table: Table, name: str) -> str:
    """Return the statement that creates the table, with the descriptions of the data dictionary."""
    # With fanout each partition keeps a file open in memory; sort the rows by partition instead.
    return (
        f"CREATE TABLE {name} ({', '.join(map(_definition, table.columns))}) USING iceberg "
        f"PARTITIONED BY ({_TRANSFORM[table.by]}({table.instant})) COMMENT {_literal(table.doc)} "
        "TBLPROPERTIES ('write.spark.fanout.enabled' = 'false')"
    )


def add_missing(table: Table, name: str, found: StructType) -> str | None:
    """Return the statement that adds missing columns to the table in the catalog; None if no column
    is missing.

    Raise BrokenLake for a column of another type, ConfigurationError for an unknown one.
    """
    kept = {field.name: field.dataType.simpleString() for field in found.fields}
    for column in table.columns:
        if kept.get(column.name, _kept_as(column)) != _kept_as(column):
            raise BrokenLake(
                f"{name}: column {column.name!r} is {kept[column.name]}, not {_kept_as(column)};"
                " rename the table away and build with --full"
            )
    unknown = kept.keys() - set(table.column_names)
    if unknown:
        raise ConfigurationError(
            f"{name} has columns this Fairlead does not know: {', '.join(sorted(unknown))}; upgrade"
            " Fairlead, or drop the columns"
        )
    missing = [_definition(column) for column in table.columns if column.name not in kept]
    return f"ALTER TABLE {name} ADD COLUMNS ({', '.join(missing)})" if missing else None


def columns_of(table: Table, rows: DataFrame) -> DataFrame:
    """Return stored rows with the table's columns; columns added later are null."""
    kept = set(rows.columns)
    return rows.select(
        *[
            (F.col(c.name) if c.name in kept else F.lit(None)).cast(c.type).alias(c.name)
            for c in table.columns
        ]
    )


def placed(table: Table, catalog: str, rows: DataFrame, parts: Collection[str] | None) -> DataFrame:
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
        F.when(during(table, catalog, parts), instant)
        .otherwise(F.raise_error(stray))
        .alias(table.instant)
    )
    return rows.select(
        *[checked if name == table.instant else F.col(name) for name in table.column_names]
    )


def during(table: Table, catalog: str, parts: Collection[str] | None) -> Column:
    """Return a condition for rows in these partitions that lets Iceberg skip the files of
    others."""
    if not parts:
        return F.lit(parts is None)
    instant = F.col(table.instant)
    # Rows without an instant, and those of a wrong clock, belong to the first partition.
    strays = (
        instant.isNull()
        | (instant < F.timestamp_micros(F.lit(0)))
        | (instant > F.timestamp_micros(F.lit(_LAST_US)))
    )
    is_first = any(p.micros_of(part) == 0 for part in parts)
    if table.by == "hour":
        names = [str(p.micros_of(part) // p.HOUR_US) for part in parts]
    else:
        names = [f"DATE '{part}'" for part in parts]
    inside = F.expr(
        f"{catalog}.system.{_TRANSFORM[table.by]}({table.instant}) IN ({', '.join(names)})"
    )
    return inside | strays if is_first else inside


def part_of(table: Table) -> Column:
    """Return the name of a partition in Iceberg's table `partitions`; null for rows without an
    instant."""
    if table.by == "hour":
        since_1970 = F.col("partition").getField(f"{table.instant}_hour")
        return F.date_format(F.timestamp_seconds(since_1970 * 3600), "yyyy-MM-dd/HH")
    return F.date_format(F.col("partition").getField(f"{table.instant}_day"), "yyyy-MM-dd")


def _definition(column: OurColumn) -> str:
    return f"`{column.name}` {_kept_as(column)} COMMENT {_literal(column.doc)}"


def _kept_as(column: OurColumn) -> str:
    return _KEPT_AS.get(column.type, column.type)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark or Java."""
    lines = [line.removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    return next(
        (line for line in lines if not line.startswith("An error occurred while calling")),
        type(error).__name__,
    )
