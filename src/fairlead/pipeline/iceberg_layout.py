"""How a table of ours is laid out in Iceberg: its columns, and partitions by the hour or the day of
its instant."""

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
"""Iceberg has no shorter integers; they are made short again when they are read."""

_TRANSFORM = {"hour": "hours", "date": "days"}


def create(table: Table, name: str) -> str:
    """The statement that makes the table, described as in the data dictionary."""
    # Without fanout rows are sorted by partition before they are written, else each partition has
    # an open file in memory.
    return (
        f"CREATE TABLE {name} ({', '.join(map(_definition, table.columns))}) USING iceberg "
        f"PARTITIONED BY ({_TRANSFORM[table.by]}({table.instant})) COMMENT {_literal(table.doc)} "
        "TBLPROPERTIES ('write.spark.fanout.enabled' = 'false')"
    )


def add_missing(table: Table, name: str, found: StructType) -> str | None:
    """The statement that adds the columns the table lacks in the catalog; None: it has them all.

    Raises BrokenLake for a column of another type, ConfigurationError for one that we do not
    know."""
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
            " it, or drop them"
        )
    missing = [_definition(column) for column in table.columns if column.name not in kept]
    return f"ALTER TABLE {name} ADD COLUMNS ({', '.join(missing)})" if missing else None


def columns_of(table: Table, rows: DataFrame) -> DataFrame:
    """Rows as they are kept, with the table's columns; those that were added later are null."""
    kept = set(rows.columns)
    return rows.select(
        *[
            (F.col(c.name) if c.name in kept else F.lit(None)).cast(c.type).alias(c.name)
            for c in table.columns
        ]
    )


def placed(table: Table, catalog: str, rows: DataFrame, parts: Collection[str] | None) -> DataFrame:
    """The table's columns of these rows; a row that lies outside the partitions makes the job fail,
    before it commits."""
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
    # Part of a column and no filter: the optimizer moves filters to rows that a join has yet to
    # drop.
    checked = (
        F.when(during(table, catalog, parts), instant)
        .otherwise(F.raise_error(stray))
        .alias(table.instant)
    )
    return rows.select(
        *[checked if name == table.instant else F.col(name) for name in table.column_names]
    )


def during(table: Table, catalog: str, parts: Collection[str] | None) -> Column:
    """Whether a row lies in these partitions, in Iceberg's own words: it then leaves out the files
    of all others."""
    if not parts:
        return F.lit(parts is None)
    if table.by == "hour":
        names = [str(p.micros_of(part) // p.HOUR_US) for part in parts]
    else:
        names = [f"DATE '{part}'" for part in parts]
    return F.expr(
        f"{catalog}.system.{_TRANSFORM[table.by]}({table.instant}) IN ({', '.join(names)})"
    )


def part_of(table: Table) -> Column:
    """The name of a partition in Iceberg's table `partitions`; null for rows without an instant."""
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
