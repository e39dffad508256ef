"""Who took the workers, against what was due to each: service and entitlement by window, queue and key."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold import DAY, window_start
from fairlead.pipeline.schema import SCHEMA_VERSION, WRITTEN_UNDER, Column, Table

TENANT_SHARE = Table(
    "gold.tenant_share",
    "what each key of a queue took of the workers in a window, and what it was entitled to",
    key=("window_start", "window_s", "queue", "fairness_key"),
    instant="window_start",
    by="date",
    columns=(
        Column("window_start", "timestamp", "start of the window"),
        Column("window_s", "int", "its length in seconds: 60, 3600 or 86400"),
        Column("queue", "string", "the queue"),
        Column("fairness_key", "string", "the key"),
        Column("busy_us", "bigint", "worker time the key got"),
        Column("share", "double", "of the queue's worker time in the window, 0 to 1; 0 if nobody got any"),
        Column("weight", "double", "the key's greatest weight in the window"),
        Column(
            "demand_us",
            "bigint",
            "worker time it could have used: unserved at the start of the window, and arrived in it",
        ),
        Column(
            "entitled_us", "bigint", "its part when the worker time spent is filled up by weight, none above its demand"
        ),
        Column("deficit_us", "bigint", "entitled_us - busy_us; below 0: it got more than its part"),
        Column(
            "lag_us",
            "bigint",
            "sum of deficit_us since the key last had no backlog, or midnight; 0 in a window without backlog",
        ),
        Column("backlogged_fraction", "double", "part of the window in which the key had tasks waiting, 0 to 1"),
        WRITTEN_UNDER,
    ),
)


def tenant_share(service: DataFrame, backlog: DataFrame, window_s: int) -> DataFrame:
    """TENANT_SHARE in windows of `window_s` seconds, from silver.service and silver.backlog of whole days."""
    return (
        _served(service, window_s)
        .unionByName(_asked(backlog, window_s))
        .groupBy("window_start", "queue", "fairness_key")
        .agg(
            F.max("weight").alias("weight"),
            *(F.sum(column).alias(column) for column in ("busy_us", "demand_us", "backlogged_us")),
        )
        .transform(_with_entitlement)
        .withColumn("deficit_us", F.col("entitled_us") - F.col("busy_us"))
        .transform(_with_lag, window_s)
        .withColumn("window_s", F.lit(window_s))
        .withColumn("backlogged_fraction", F.col("backlogged_us") / F.lit(window_s * 1_000_000))
        .withColumn("schema_version", F.lit(SCHEMA_VERSION).cast("smallint"))
        .select(*TENANT_SHARE.column_names)
    )


def _served(service: DataFrame, window_s: int) -> DataFrame:
    none = F.lit(0).cast("bigint")
    return service.select(
        window_start(F.col("window_start"), window_s).alias("window_start"),
        "queue",
        "fairness_key",
        "weight",
        "busy_us",
        none.alias("demand_us"),
        none.alias("backlogged_us"),
    )


def _asked(backlog: DataFrame, window_s: int) -> DataFrame:
    start = window_start(F.col("minute"), window_s)
    # Work left over from the window before counts once, at the start; later minutes only add what arrived in them.
    carried_us = F.when(F.col("minute") == start, F.col("work_us")).otherwise(0)
    return backlog.select(
        start.alias("window_start"),
        "queue",
        "fairness_key",
        "weight",
        F.lit(0).cast("bigint").alias("busy_us"),
        (carried_us + F.col("arrived_us")).alias("demand_us"),
        "backlogged_us",
    )


def _with_entitlement(keys: DataFrame) -> DataFrame:
    """Adds share and entitled_us: capacity (what the queue's keys got together) poured into the keys by weight.

    Each key takes min(demand, level x weight). Pouring, keys fill up in the order of demand / weight; while all before a
    key are full and none after it, the level is (capacity - their demand) / (weight of the others). Taken at each key in
    turn, that value rises until the key at which the water stops and falls after it: the level is the greatest of them.
    """
    together = Window.partitionBy("window_start", "queue")
    # Largest first, so that the weights of a key and all that fill up after it are summed without cancellation.
    thirstiest_first = together.orderBy((F.col("demand_us") / F.col("weight")).desc(), "fairness_key").rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    capacity_us = F.sum("busy_us").over(together)
    filled_us = F.sum("demand_us").over(together) - F.sum("demand_us").over(thirstiest_first)
    weight_left = F.sum("weight").over(thirstiest_first)
    by_weight = F.col("level") * F.col("weight")
    return (
        keys.withColumn("share", F.coalesce(F.try_divide(F.col("busy_us"), capacity_us), F.lit(0.0)))
        .withColumn("level_here", (capacity_us - filled_us) / weight_left)
        .withColumn("level", F.max("level_here").over(together))
        .withColumn(
            "entitled_us",
            F.when(by_weight < F.col("demand_us"), F.round(by_weight).cast("bigint")).otherwise(F.col("demand_us")),
        )
    )


def _with_lag(keys: DataFrame, window_s: int) -> DataFrame:
    day = window_start(F.col("window_start"), DAY)
    in_order = Window.partitionBy("queue", "fairness_key", "day").orderBy("window_start")
    since_idle = Window.partitionBy("queue", "fairness_key", "day", "stretch").orderBy("window_start")
    is_next = F.unix_seconds("window_start") - F.unix_seconds(F.lag("window_start").over(in_order)) == window_s
    backlogged = F.col("backlogged_us") > 0
    goes_on = is_next & backlogged & (F.lag("backlogged_us").over(in_order) > 0)
    return (
        keys.withColumn("day", day)
        .withColumn("begins", F.when(goes_on, 0).otherwise(1))
        .withColumn("stretch", F.sum("begins").over(in_order))
        .withColumn("lag_us", F.when(backlogged, F.sum("deficit_us").over(since_idle)).otherwise(0))
    )
