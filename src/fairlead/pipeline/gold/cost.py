"""Cost by key: the bill of a day divided between the keys that used the workers, exact to a
millionth of the currency unit."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from fairlead.pipeline.gold import window_start
from fairlead.pipeline.models import COST
from fairlead.pipeline.sorting import joined
from fairlead.pipeline.windows import ALL, DAY, HOUR

IDLE_BY = {"usage": "busy_us", "peak": "peak_us", "reserved": "reserved"}
"""Column in proportion to which each method divides idle time: worker time, worker time of the
key's busiest hour, or weights."""

BILLS = "day date, queue string, worker_us bigint, amount decimal(18,6)"
"""Columns of bills."""

HOUR_US = 3_600_000_000
_MILLIONTHS = 1_000_000
_LONG = "decimal(19,0)"
"""Decimal type that holds any bigint; a product of two fits into the 38 digits of a decimal."""


def cost(
    service: DataFrame,
    bills: DataFrame,
    method: str = "usage",
    few: bool = False,
) -> DataFrame:
    """Return COST from silver.service of whole days (UTC) and `bills`: (day, queue, worker_us,
    amount).

    A bill covers `worker_us` of paid worker time and is not negative. Bills for the same day and
    queue are added. All queues of a day without a bill of their own share the bill for the queue
    '*'. Each key pays for its busy time and its part of the idle time. few: whether one task of
    Spark takes in all rows. Raise ValueError unless the method is usage, peak or reserved.
    """
    if method not in IDLE_BY:
        raise ValueError(f"method {method!r}: use one of {', '.join(IDLE_BY)}")
    bills = bills.groupBy(
        F.col("day").cast("timestamp").alias("day"),
        F.col("queue").alias("bill"),
    ).agg(
        F.sum("worker_us").cast("bigint").alias("worker_us"),
        F.sum("amount").cast("decimal(18,6)").alias("bill_amount"),
    )
    return (
        _used(service.coalesce(1) if few else service)
        .transform(_with_bill, bills, few)
        .withColumn(
            "idle_us", F.greatest(F.col("worker_us") - F.sum("busy_us").over(_sharing()), F.lit(0))
        )
        .transform(_split, "idle_us", IDLE_BY[method], "idle_allocated_us")
        .withColumn("paid_us", F.col("busy_us") + F.col("idle_allocated_us"))
        .withColumn("bill_millionths", (F.col("bill_amount") * _MILLIONTHS).cast("bigint"))
        .fillna(0, "bill_millionths")
        .transform(_split, "bill_millionths", "paid_us", "millionths")
        .withColumn(
            "amount",
            (F.col("millionths").cast("decimal(24,6)") / _MILLIONTHS).cast("decimal(18,6)"),
        )
        .withColumn(
            "price", F.try_divide(F.col("bill_amount").cast("double") * HOUR_US, F.col("worker_us"))
        )
        .withColumn("method", F.lit(method))
        .select(*COST.column_names)
    )


def _used(service: DataFrame) -> DataFrame:
    key = ["day", "queue", "fairness_key"]
    # The weight of a day is the mean over its worker time, so that one heavy run does not set it.
    mean = F.coalesce(F.try_divide(F.sum("busy_us"), F.sum("weighted_us")), F.max("weight"))
    return (
        service.groupBy(
            window_start(F.col("window_start"), DAY).alias("day"),
            "queue",
            "fairness_key",
            window_start(F.col("window_start"), HOUR).alias("hour"),
        )
        .agg(
            F.sum("busy_us").alias("busy_us"),
            F.sum("wasted_us").alias("wasted_us"),
            F.sum("weighted_us").alias("weighted_us"),
            F.max("weight").alias("weight"),
        )
        .groupBy(*key)
        .agg(
            F.sum("busy_us").alias("busy_us"),
            F.sum("wasted_us").alias("wasted_us"),
            F.max("busy_us").alias("peak_us"),
            F.round(mean * 1_000_000).cast("bigint").alias("reserved"),
        )
    )


def _with_bill(used: DataFrame, bills: DataFrame, few: bool) -> DataFrame:
    """Add to each row the bill that it shares (null if there is none), and add a row for each bill
    that no row shares."""
    own = bills.select("day", F.col("bill").alias("queue"), F.lit(True).alias("has_own"))
    return (
        used.join(joined(own, few), on=["day", "queue"], how="left")
        .withColumn("bill", F.when(F.col("has_own"), F.col("queue")).otherwise(ALL))
        .join(joined(bills, few) if few else bills, on=["day", "bill"], how="full")
        .withColumn("queue", F.coalesce("queue", "bill"))
        .fillna({"fairness_key": ALL, "busy_us": 0, "wasted_us": 0, "peak_us": 0, "reserved": 0})
    )


def _sharing() -> WindowSpec:
    return Window.partitionBy("day", "bill")


def _split(rows: DataFrame, total: str, by: str, into: str) -> DataFrame:
    """Add `into`: integers in proportion to `by` that sum to `total`, by largest remainder; ties by
    key.

    All numbers are integers, because a double would lose the last digits. The split is even where
    `by` is 0 for all rows.
    """
    sharing = _sharing()
    largest_first = sharing.orderBy(F.col("remainder").desc(), "queue", "fairness_key")
    return (
        rows.withColumn(
            "part", F.when(F.sum(by).over(sharing) > 0, F.col(by)).otherwise(1).cast(_LONG)
        )
        .withColumn("parts", F.sum("part").over(sharing))
        .withColumn("exact", F.col(total).cast(_LONG) * F.col("part"))
        .withColumn("remainder", F.col("exact") % F.col("parts"))
        .withColumn("quotient", F.expr("exact div parts"))
        .withColumn("left", F.col(total) - F.sum("quotient").over(sharing))
        .withColumn(
            into,
            F.col("quotient")
            + F.when(F.row_number().over(largest_first) <= F.col("left"), 1).otherwise(0),
        )
        .drop("part", "parts", "exact", "remainder", "quotient", "left")
    )
