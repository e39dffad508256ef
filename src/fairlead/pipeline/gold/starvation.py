"""Starved keys: those that had work waiting and got none of it started for far longer than is usual
in their queue."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold import KEYS_DAY, MINUTE

LONGER_THAN_USUAL = 10
"""Times the median pickup of the queue."""


def starved(minutes: DataFrame, pickups: DataFrame) -> DataFrame:
    """Adds `starved` to a key's minutes: whether it had tasks waiting all through the last of them
    (depth_min) and none claimed, for a minute and for ten times the median pickup; counted from
    midnight on.

    `minutes`: (KEYS_DAY, minute, depth_min, claimed), instants in seconds, a minute without a row
    had nothing waiting; `pickups`: (day, queue, pickup_p50_us).
    """
    in_order = Window.partitionBy(*KEYS_DAY).orderBy("minute")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    minute, unserved = F.col("minute"), (F.col("depth_min") > 0) & (F.col("claimed") == 0)
    follows = minute - F.lag("minute", 1, 0).over(in_order) == MINUTE
    served_until = F.when(~unserved, minute + MINUTE).when(~follows, minute)
    too_long_s = F.greatest(F.lit(MINUTE), LONGER_THAN_USUAL * F.col("pickup_p50_us") / 1_000_000)
    return (
        minutes.withColumn("served_until", served_until)
        .withColumn("waited_s", minute + MINUTE - F.max("served_until").over(so_far))
        .join(F.broadcast(pickups), on=["day", "queue"], how="left")
        .withColumn("starved", unserved & (F.col("waited_s") >= too_long_s))
    )
