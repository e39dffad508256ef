"""The layout of a table in Iceberg: columns, partitions by the hour or day of its instant, and
properties.

All columns are optional, because Spark writes them so. Partition names are those of
`fairlead.pipeline.partitions`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, Transform

from fairlead.clock import to_datetime, to_micros
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.partitions import HOUR_US, part_of
from fairlead.pipeline.schema import Table

DAY_US = 24 * HOUR_US
LAST_US = 253_402_300_799 * 1_000_000
"""The last second of the year 9999. Rows with later instants, or before 1970, have a wrong clock.
Their partitions have the name of the first one."""

_FIRST_US = to_micros(datetime(1, 1, 2, tzinfo=UTC))
"""Rows outside of the years 1 to 9999 are in the first or last partition of these years, because
engines print the names of partitions as dates."""

NO_RETRIES = {"commit.retry.num-retries": "0"}
"""A library that repeats a refused commit would add the same rows to a table that another writer
has changed: a double export."""


@cache
def schema_of(table: Table) -> Schema:
    """Return the columns of a new table."""
    fields = [
        field.with_nullable(True).with_metadata({"PARQUET:field_id": str(number), "doc": c.doc})
        for number, (field, c) in enumerate(zip(table.arrow(), table.columns, strict=True), 1)
    ]
    return pyarrow_to_schema(pa.schema(fields))


def spec_of(table: Table, schema: Schema) -> PartitionSpec:
    """Return the partitions of a new table, with the names that Spark gives."""
    source = schema.find_field(table.instant).field_id
    transform: Transform[Any, int] = HourTransform() if table.by == "hour" else DayTransform()
    return PartitionSpec(PartitionField(source, 1000, transform, f"{table.instant}_{transform}"))


def properties_of(table: Table) -> dict[str, str]:
    """Return the properties of a new table.

    Metadata stays small: no text of a row in manifests, few old versions, merged manifests.
    Engines write new files for changed ones, so that a list of Parquet files is the table.
    """
    instants = [column.name for column in table.columns if column.type == "timestamp"]
    return (
        NO_RETRIES
        | {
            "comment": table.doc,
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "10",
            "commit.manifest-merge.enabled": "true",
            "commit.manifest.min-count-to-merge": "50",
            "commit.manifest.target-size-bytes": str(1 << 20),
            "write.delete.mode": "copy-on-write",
            "write.update.mode": "copy-on-write",
            "write.merge.mode": "copy-on-write",
            "write.parquet.compression-codec": "zstd",
            "write.spark.fanout.enabled": "false",
            "write.metadata.metrics.default": "counts",
        }
        | {f"write.metadata.metrics.column.{name}": "full" for name in instants}
    )


def check_columns(table: Table, found: Schema) -> None:
    """Raise BrokenLake if the stored table has other columns than those of the table."""
    stored = {field.name: field.field_type for field in found.fields}
    wanted = {field.name: field.field_type for field in schema_of(table).fields}
    if other := sorted({name for name, _ in stored.items() ^ wanted.items()}):
        raise BrokenLake(
            f"{table.name} has other columns than this Fairlead: {', '.join(map(repr, other))};"
            " undo the change that another engine or version has made to its columns"
        )


def unit_of(table: Table) -> int:
    """Return the length of a partition in microseconds."""
    return HOUR_US if table.by == "hour" else DAY_US


def part_name(table: Table, number: int | None) -> str:
    """Return the name of a partition; rows without an instant, and those of a wrong clock, count
    as in the first partition."""
    micros = (number or 0) * unit_of(table)
    return part_of(table, to_datetime(micros if 0 <= micros <= LAST_US else 0))


def split(table: Table, rows: pa.Table) -> list[tuple[int | None, pa.Table]]:
    """Return the rows of each partition, with its number."""
    if not rows.num_rows:
        return []
    unit = unit_of(table)
    instants = rows[table.instant].cast(pa.int64())
    within = pc.min_element_wise(
        pc.max_element_wise(instants, _FIRST_US, skip_nulls=False), LAST_US, skip_nulls=False
    )
    # Integer division rounds towards zero; Iceberg rounds down.
    whole = pc.divide(within, unit)
    numbers = pc.if_else(pc.less(within, pc.multiply(whole, unit)), pc.subtract(whole, 1), whole)
    found: list[tuple[int | None, pa.Table]] = [
        (number, rows.filter(pc.equal(numbers, number)))
        for number in sorted(pc.unique(numbers).drop_null().to_pylist())
    ]
    if numbers.null_count:
        found.append((None, rows.filter(pc.is_null(numbers))))
    return found
