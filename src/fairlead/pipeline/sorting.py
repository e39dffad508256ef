"""Rows in the tasks of Spark that group them, and a sorting column that makes grouping by texts as
fast as grouping by numbers."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SORTER = "sorter"
"""Name of the sorting column, for grouping and partitioning."""


def sorter(*columns: str) -> Column:
    """Return a hash of these columns. Group by the hash first and by the columns after it, so that
    the groups stay the same.

    When Spark sorts rows to group them, it first compares the first eight bytes. Rows often share
    these bytes of the hour, queue or key, and each comparison then reads the whole texts. The bytes
    of the hash nearly always differ between groups.
    """
    return F.xxhash64(*columns)


SLICE = "slice"
"""Name of the column with the slice of an hour that a row belongs to."""


def together(rows: DataFrame, few: bool, *key: str) -> DataFrame:
    """Return the rows with those of a key in one task of Spark; few rows are all in one task, in
    which Spark groups, sorts and joins them without a shuffle."""
    return rows.coalesce(1) if few else rows.repartition(*key)


def joined(rows: DataFrame, few: bool) -> DataFrame:
    """Return the small side of a join, which Spark copies to all tasks, or takes from the one task
    of few rows."""
    return rows.coalesce(1).hint("shuffle_hash") if few else F.broadcast(rows)


def by_hour(rows: DataFrame, slices: int, *key: str) -> DataFrame:
    """Return the rows, which have a column `hour`, with a task of Spark for each slice of an hour,
    or with 0 slices in one task. All rows of a key are in one slice.

    Group by SLICE, `hour` and the key: then Spark needs no second shuffle.
    """
    # The slice is computed even if there is only one: Spark would take a constant out of the
    # grouping columns, and then shuffle a second time.
    number = F.pmod(sorter(*key), F.lit(slices)) if slices else F.lit(0)
    return together(rows.withColumn(SLICE, number), not slices, "hour", SLICE)
