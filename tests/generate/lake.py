"""Writer of generated attempts to a lake. The files are laid out as by the exporter: one folder for
each hour in which the attempts finished, and every file listed in the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.clock import to_micros
from fairlead.pipeline import durable
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import LakeTable, Written
from tests.generate.record import recorded
from tests.generate.runs import of_work, timed
from tests.generate.truth import Truth

_PARTITION_COLUMNS = ("date", "hour", "g")


def write_lake(
    spark: SparkSession,
    lake: Lake,
    truth: Truth,
    since: datetime | None = None,
    until: datetime | None = None,
) -> int:
    """Write the attempts whose export time is in [since, until), by default all attempts, one file
    for each hour; return the number of rows.

    The manifest records the export time as the time of writing, because a build selects files by
    the time of writing. Late rows of earlier hours go to additional files. Raise BrokenLake if the
    new files are removed before the manifest lists them.
    """
    table = lake.table(ATTEMPTS)
    rows = timed(spark, truth)
    if since is not None:
        rows = rows.where(F.col("exported") >= to_micros(since))
    if until is not None:
        rows = rows.where(F.col("exported") < to_micros(until))
    generation = "all" if until is None else f"until-{to_micros(until)}"
    _write(rows, truth, table.folder, generation)
    written = list(_written(table, generation))
    last = max((file.span["exported_at"][1] for file in written), default=0)
    if table.append(written, {}, last if until is None else to_micros(until)) is None:
        raise BrokenLake(
            f"{table.folder}: new files were removed before the manifest listed them;"
            " do not clean a lake while it is generated"
        )
    return sum(file.rows for file in written)


def _write(rows: DataFrame, truth: Truth, folder: Path, generation: str) -> None:
    # Shuffle and sort the narrow rows first, because complete attempts are several times as wide.
    finished = F.timestamp_micros("finished")
    placed = (
        rows.withColumn("date", F.date_format(finished, "yyyy-MM-dd"))
        .withColumn("hour", F.date_format(finished, "HH"))
        .withColumn("queue", of_work([work.queue for work in truth.works]))
        .repartition("date", "hour")
        .sortWithinPartitions("date", "hour", "queue", "tenant", "finished")
    )
    columns = recorded(placed, truth, "date", "hour").withColumn("g", F.lit(generation))
    columns.write.partitionBy(*_PARTITION_COLUMNS).mode("append").parquet(str(folder))


def _written(table: LakeTable, generation: str) -> Iterator[Written]:
    """Flush the files of a generation to disk, and return each with the minimum and maximum of its
    timestamp columns from its footer."""
    import pyarrow.parquet as pq

    for folder in sorted(table.folder.glob(f"date=*/hour=*/g={generation}")):
        date, hour = (name.partition("=")[2] for name in folder.relative_to(table.folder).parts[:2])
        for path in sorted(folder.glob("*.parquet")):
            durable.sync(path)
            footer = pq.read_metadata(path)
            name = str(path.relative_to(table.folder))
            yield Written(
                f"{date}/{hour}", name, footer.num_rows, path.stat().st_size, _span(footer)
            )
        durable.sync(folder)


def _span(footer: Any) -> dict[str, tuple[int, int]]:
    span: dict[str, tuple[int, int]] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            ends = column.statistics
            if ends is not None and ends.has_min_max and isinstance(ends.min, datetime):
                low, high = span.get(
                    column.path_in_schema, (to_micros(ends.min), to_micros(ends.max))
                )
                span[column.path_in_schema] = (
                    min(low, to_micros(ends.min)),
                    max(high, to_micros(ends.max)),
                )
    return span
