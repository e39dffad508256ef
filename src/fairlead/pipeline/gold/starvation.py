"""Starved keys: those that had work waiting and got none of it started for far longer than is usual in their queue."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold import DAY, MINUTE, window_start

LONGER_THAN_USUAL = 10
"""Times the median pickup of the queue."""


def starved(backlog: DataFrame, pickups: DataFrame, window_s: int) -> DataFrame:
    """(window_start, queue, fairness_key, starved: true) of the keys that starved at some minute of a window.

    `backlog`: silver.backlog of whole days; `pickups`: (queue, pickup_p50_us). A key starves that had tasks waiting all
    through the last minutes and none grabbed, for a minute and for ten times the median pickup; counted from midnight on.
    """
    in_order = Window.partitionBy("day", "queue", "fairness_key").orderBy("minute")
    since = Window.partitionBy("day", "queue", "fairness_key", "stretch").orderBy("minute")
    too_long_s = F.greatest(F.lit(MINUTE), LONGER_THAN_USUAL * F.col("pickup_p50_us") / 1_000_000)
    return (
        backlog.filter((F.col("depth_min") > 0) & (F.col("grabbed") == 0))
        .withColumn("day", window_start(F.col("minute"), DAY))
        # Minutes that follow each other have the same difference to their number: one value for each stretch of them.
        .withColumn("stretch", F.unix_seconds("minute") - MINUTE * F.row_number().over(in_order))
        .withColumn("waited_s", MINUTE * F.row_number().over(since))
        .join(F.broadcast(pickups), on="queue", how="left")
        .filter(F.col("waited_s") >= too_long_s)
        .select(window_start(F.col("minute"), window_s).alias("window_start"), "queue", "fairness_key")
        .distinct()
        .withColumn("starved", F.lit(True))
    )
