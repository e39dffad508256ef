"""Service and entitlement by window, queue and key."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold import KEYS_DAY, start_of
from fairlead.pipeline.gold.starvation import starved
from fairlead.pipeline.models import TENANT_SHARE
from fairlead.pipeline.sorting import SORTER, joined, sorter, together
from fairlead.pipeline.windows import DAY, MINUTE, WINDOWS


def tenant_share(
    service: DataFrame,
    backlog: DataFrame,
    pickups: DataFrame,
    few: bool = False,
) -> DataFrame:
    """Return TENANT_SHARE in windows of every size.

    service, backlog: silver.service and silver.backlog of whole days (UTC). pickups:
    (day, queue, pickup_p50_us), the median pickup in microseconds. few:
    whether one task of Spark takes in all rows.
    """
    return (
        _served(service)
        .unionByName(_backlogged(backlog))
        .withColumn("day", start_of(F.col("minute"), DAY))
        # Shuffle the rows once: all sums and carried values stay within a key's day.
        .withColumn(SORTER, sorter("day", "queue", "fairness_key"))
        .transform(together, few, *KEYS_DAY)
        .transform(_minutes)
        .transform(starved, joined(pickups, few))
        .transform(_windows)
        .transform(_with_entitlement)
        .withColumn("deficit_us", F.col("entitled_us") - F.col("busy_us"))
        .transform(_with_lag)
        .withColumns(
            {
                "window_start": F.timestamp_seconds("start"),
                "backlogged_fraction": F.col("backlogged_us") / (F.col("window_s") * F.lit(1e6)),
                "throughout": F.col("full_minutes") * MINUTE == F.col("window_s"),
            }
        )
        .select(*TENANT_SHARE.column_names)
    )


def _served(service: DataFrame) -> DataFrame:
    return _of_minute(service, F.col("window_start"), "busy_us", "weighted_us", "longest_run_us")


def _backlogged(backlog: DataFrame) -> DataFrame:
    # Times are rounded down to seconds, so depth_min can be 0 although some task waited all the
    # time.
    is_full = (F.col("depth_min") > 0) | (F.col("backlogged_us") >= MINUTE * 1_000_000)
    return _of_minute(
        backlog.withColumn("full_minutes", is_full.cast("bigint")),
        F.col("minute"),
        "work_us",
        "arrived_us",
        "backlogged_us",
        "claimed",
        "strides",
        "depth_min",
        "full_minutes",
    )


_SUMS = (
    "busy_us",
    "weighted_us",
    "work_us",
    "arrived_us",
    "backlogged_us",
    "claimed",
    "strides",
    "depth_min",
    "full_minutes",
)
_GREATEST = ("weight", "longest_run_us")
_TYPES = dict.fromkeys((*_SUMS, *_GREATEST), "bigint") | dict.fromkeys(
    ("weighted_us", "strides", "weight"), "double"
)


def _of_minute(rows: DataFrame, minute: Expression, *columns: str) -> DataFrame:
    """Return (queue, fairness_key, minute, weight) and all columns of _SUMS and _GREATEST,
    with 0 in those that `columns` does not name. Instants are in seconds."""
    return rows.select(
        "queue",
        "fairness_key",
        F.unix_seconds(minute).alias("minute"),
        *(
            (F.col(name) if name in ("weight", *columns) else F.lit(0))
            .cast(_TYPES[name])
            .alias(name)
            for name in _TYPES
        ),
    )


def _minutes(rows: DataFrame) -> DataFrame:
    """Return one row for each minute of a key. work_us is the work left at its start, arrived_us
    the work that arrived in it."""
    return rows.groupBy(*KEYS_DAY, "minute").agg(
        *(F.sum(name).alias(name) for name in _SUMS),
        *(F.max(name).alias(name) for name in _GREATEST),
    )


def _windows(minutes: DataFrame) -> DataFrame:
    start = start_of(F.col("minute"), F.col("window_s"))
    # Work left from the window before counts once, at the start. Later minutes add only the work
    # that arrived in them.
    carried_us = F.when(F.col("minute") == F.col("start"), F.col("work_us")).otherwise(0)
    # Take the longest run of the day, not of the window: the SFQ bound is about the longest run a
    # key may have, even while the key waits.
    longest_us = F.max("longest_run_us").over(Window.partitionBy(*KEYS_DAY))
    return (
        minutes.withColumn("longest_run_us", longest_us)
        .withColumn("window_s", F.explode(F.array(*map(F.lit, WINDOWS))))
        .withColumn("start", start)
        .groupBy(*KEYS_DAY, "window_s", "start")
        .agg(
            F.sum(carried_us + F.col("arrived_us")).alias("demand_us"),
            *(
                F.sum(name).alias(name)
                for name in (
                    "busy_us",
                    "weighted_us",
                    "backlogged_us",
                    "claimed",
                    "strides",
                    "full_minutes",
                )
            ),
            *(F.max(name).alias(name) for name in (*_GREATEST, "starved")),
        )
        .withColumns({"weight": _weight(), "weighted_us": F.round("weighted_us", 3)})
    )


def _weight() -> Expression:
    means = F.try_divide("claimed", "strides"), F.try_divide("busy_us", "weighted_us")
    # The last digits of a sum depend on the order of the rows.
    return F.coalesce(*(F.round(mean, 9) for mean in means), F.col("weight"))


def _with_entitlement(keys: DataFrame) -> DataFrame:
    """Add share and entitled_us: the capacity (service of all keys of the queue) divided by weight,
    up to the demand of each key.

    Shares are max-min fair, by water-filling: each key gets min(demand, level x weight). Keys fill
    up in the order of demand / weight. If the water stops at a key, the keys before it are full and
    the level is (capacity - demand of the full keys) / (weight of the others). Computed for each
    key, this value rises up to that key and falls after it, so the level is the greatest value.
    """
    keys = keys.withColumn("rivals", sorter("window_s", "start", "queue"))
    # Sort the largest first, so that the weights of a key and of the keys that fill up after it are
    # summed without cancellation.
    thirstiest_first = Window.partitionBy("rivals", "window_s", "start", "queue").orderBy(
        (F.col("demand_us") / F.col("weight")).desc(), "fairness_key"
    )
    together = thirstiest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    from_here = thirstiest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    capacity_us = F.sum("busy_us").over(together)
    filled_us = F.sum("demand_us").over(together) - F.sum("demand_us").over(from_here)
    weight_left = F.sum("weight").over(from_here)
    by_weight = F.col("level") * F.col("weight")
    return (
        keys.withColumn(
            "share", F.coalesce(F.try_divide(F.col("busy_us"), capacity_us), F.lit(0.0))
        )
        .withColumn("level_here", (capacity_us - filled_us) / weight_left)
        .withColumn("level", F.max("level_here").over(together))
        .withColumn(
            "entitled_us",
            F.when(by_weight < F.col("demand_us"), F.round(by_weight).cast("bigint")).otherwise(
                F.col("demand_us")
            ),
        )
    )


def _with_lag(keys: DataFrame) -> DataFrame:
    in_order = Window.partitionBy(*KEYS_DAY, "window_s").orderBy("start")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_next = F.col("start") - F.lag("start").over(in_order) == F.col("window_s")
    backlogged = F.col("backlogged_us") > 0
    goes_on = is_next & backlogged & (F.lag("backlogged_us").over(in_order) > 0)
    before = F.when(~F.col("goes_on"), F.col("deficits") - F.col("deficit_us"))
    return (
        keys.withColumns(
            {
                "goes_on": F.coalesce(goes_on, F.lit(False)),
                "deficits": F.sum("deficit_us").over(so_far),
            }
        )
        .withColumn("before", F.last(before, ignorenulls=True).over(so_far))
        .withColumn("lag_us", F.when(backlogged, F.col("deficits") - F.col("before")).otherwise(0))
    )
