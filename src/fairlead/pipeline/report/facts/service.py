"""Service and entitlement: by queue, by key, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

MOST_QUEUES = 1000
"""Maximum number of queues listed. Queues are few, because they are named in code."""

QUEUES_DRAWN = 4
"""Number of queues with pictures of their own: those with most worker time."""

_POINTS = MOST_POINTS + 2
"""Maximum number of steps of a period, whose bounds are rounded outwards."""


def queues(tables: Tables, period: Period) -> pd.DataFrame:
    """Return the queues, most worker time first.

    Columns: queue, busy_us, started, done, failed, wasted_us. At most 1000 rows.
    """
    return collect(
        period.rows(tables, SERVICE)
        .groupBy("queue")
        .agg(
            F.sum("busy_us").alias("busy_us"),
            F.sum("attempts_started").alias("started"),
            F.sum("attempts_done").alias("done"),
            F.sum("failed").alias("failed"),
            F.sum("wasted_us").alias("wasted_us"),
        )
        .orderBy(F.desc("busy_us"), "queue")
        .limit(MOST_QUEUES),
        MOST_QUEUES,
    )


def keys(tables: Tables, period: Period, queues: Sequence[str], top: int) -> pd.DataFrame:
    """Return the top keys of these queues by worker time or by lag, and the rest of each queue as
    one row, by queue and rank.

    Columns: queue, rank (from 1; null for the rest), fairness_key (null for the rest), keys (number
    of keys in the row), weight (the latest), busy_us, entitled_us, lag_us (greatest of any window),
    lag_at. At most (top + 1) rows a queue.
    """
    by_key = (
        _shares(tables, period, queues)
        .groupBy("queue", "fairness_key")
        .agg(
            F.max_by("weight", "window_start").alias("weight"),
            F.sum("busy_us").alias("busy_us"),
            F.sum("entitled_us").alias("entitled_us"),
            F.max("lag_us").alias("lag_us"),
            F.max_by("window_start", "lag_us").alias("lag_at"),
        )
    )
    is_shown = F.col("position") <= top
    rows = (
        by_key.transform(_ranked)
        .groupBy(
            "queue",
            F.when(is_shown, F.col("position")).alias("rank"),
            F.when(is_shown, F.col("fairness_key")).alias("fairness_key"),
        )
        .agg(
            F.count(F.lit(1)).alias("keys"),
            F.max("weight").alias("weight"),
            F.sum("busy_us").alias("busy_us"),
            F.sum("entitled_us").alias("entitled_us"),
            F.max("lag_us").alias("lag_us"),
            F.max_by("lag_at", "lag_us").alias("lag_at"),
        )
        .orderBy("queue", F.asc_nulls_last("rank"))
    )
    return collect(rows, QUEUES_DRAWN * (top + 1))


def over_time(tables: Tables, period: Period, keys: pd.DataFrame) -> pd.DataFrame:
    """Return the service of `keys` in steps of the period.

    Columns: at, queue, rank (null for the rest), busy_us, entitled_us, lag_us (the value farthest
    from 0 in the step). Steps in which a key neither ran nor waited have no row. At most 202 rows
    for each row of `keys`.
    """
    shown = keys.dropna(subset=["rank"])
    if shown.empty:
        return collect(_none_over_time(tables, period), 0)
    named = tables.read(TENANT_SHARE, []).sparkSession.createDataFrame(
        [(row.queue, row.fairness_key, int(row.rank)) for row in shown.itertuples()],
        "queue string, fairness_key string, rank int",
    )
    rows = (
        _shares(tables, period, sorted(set(shown["queue"])))
        .join(F.broadcast(named), on=["queue", "fairness_key"], how="left")
        .transform(_in_steps, period)
    )
    return collect(rows, _POINTS * len(keys))


def _none_over_time(tables: Tables, period: Period) -> DataFrame:
    return (
        tables.read(TENANT_SHARE, [])
        .withColumn("rank", F.lit(None).cast("int"))
        .transform(_in_steps, period)
    )


def _in_steps(shares: DataFrame, period: Period) -> DataFrame:
    return (
        shares.groupBy(period.step("window_start").alias("at"), "queue", "rank")
        .agg(
            F.sum("busy_us").alias("busy_us"),
            F.sum("entitled_us").alias("entitled_us"),
            F.max_by("lag_us", F.abs("lag_us")).alias("lag_us"),
        )
        .orderBy("queue", "rank", "at")
    )


def _shares(tables: Tables, period: Period, queues: Sequence[str]) -> DataFrame:
    right_size = F.col("window_s") == period.window_s
    return period.rows(tables, TENANT_SHARE).where(right_size & F.col("queue").isin(list(queues)))


def _ranked(by_key: DataFrame) -> DataFrame:
    """Add `position`: 1 for the key with most worker time, then alternately by lag and by worker
    time."""
    of_queue = Window.partitionBy("queue")
    return (
        by_key.withColumn(
            "by_busy", F.row_number().over(of_queue.orderBy(F.desc("busy_us"), "fairness_key"))
        )
        .withColumn(
            "by_lag", F.row_number().over(of_queue.orderBy(F.desc("lag_us"), "fairness_key"))
        )
        .withColumn(
            "position",
            F.row_number().over(
                of_queue.orderBy(F.least("by_busy", "by_lag"), "by_busy", "fairness_key")
            ),
        )
    )
