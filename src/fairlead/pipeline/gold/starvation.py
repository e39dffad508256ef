"""Starved keys: keys with waiting tasks of which none was claimed for far longer than is usual in
the queue."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold import KEYS_DAY
from fairlead.pipeline.windows import MINUTE

LONGER_THAN_USUAL = 10
"""Least wait of a starved key, as a multiple of the median pickup of its queue."""


def starved(minutes: DataFrame, pickups: DataFrame) -> DataFrame:
    """Add `starved` to the minutes of a key.

    A key is starved in a minute if its tasks waited throughout the minute (depth_min > 0) and none
    was claimed for at least a minute and at least ten times the median pickup. The wait is counted
    from midnight at the earliest.

    minutes: (KEYS_DAY, minute, depth_min, claimed) with instants in seconds; no task waited in
    a minute without a row. pickups: (day, queue, pickup_p50_us).
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
        .join(pickups, on=["day", "queue"], how="left")
        .withColumn("starved", unserved & (F.col("waited_s") >= too_long_s))
    )
