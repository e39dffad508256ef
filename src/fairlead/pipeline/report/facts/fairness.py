"""Evenness of the service of each queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.report.facts.service import MOST_QUEUES, QUEUES_DRAWN
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd


def over_time(tables: Tables, period: Period, queues: Sequence[str]) -> pd.DataFrame:
    """Return evenness in steps of the period.

    Columns: at, queue, jain (mean of the windows; null if no window could be judged), jain_least,
    n_keys and starved_keys (greatest of the windows). At most 202 rows a queue.
    """
    rows = (
        _windows(tables, period)
        .where(F.col("queue").isin(list(queues)))
        .groupBy(period.step("window_start").alias("at"), "queue")
        .agg(
            F.avg("jain").alias("jain"),
            F.min("jain").alias("jain_least"),
            F.max("n_keys").alias("n_keys"),
            F.max("starved_keys").alias("starved_keys"),
        )
        .orderBy("queue", "at")
    )
    return collect(rows, QUEUES_DRAWN * (MOST_POINTS + 2))


def by_queue(tables: Tables, period: Period) -> pd.DataFrame:
    """Return evenness by queue.

    Columns: queue, windows, judged (windows with two backlogged keys), jain_median, jain_least,
    within_bound (number of judged windows), starved_windows, starved_keys (greatest), noisy_key and
    noisy_score (greatest of all windows), max_lag_us with max_lag_key. At most 1000 rows.
    """
    rows = (
        _windows(tables, period)
        .groupBy("queue")
        .agg(
            F.count(F.lit(1)).alias("windows"),
            F.count("bound_ok").alias("judged"),
            F.median("jain").alias("jain_median"),
            F.min("jain").alias("jain_least"),
            F.count_if("bound_ok").alias("within_bound"),
            F.count_if(F.col("starved_keys") > 0).alias("starved_windows"),
            F.max("starved_keys").alias("starved_keys"),
            F.max_by("noisy_key", "noisy_score").alias("noisy_key"),
            F.max("noisy_score").alias("noisy_score"),
            F.max_by("max_lag_key", "max_lag_us").alias("max_lag_key"),
            F.max("max_lag_us").alias("max_lag_us"),
        )
        .orderBy("queue")
        .limit(MOST_QUEUES)
    )
    return collect(rows, MOST_QUEUES)


def _windows(tables: Tables, period: Period) -> DataFrame:
    return period.rows(tables, FAIRNESS).where(F.col("window_s") == period.window_s)
