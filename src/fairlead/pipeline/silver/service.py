"""Service by key and minute: each run is split over its minutes, so that all worker time counts in
the minute in which it was spent."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.models import SERVICE
from fairlead.pipeline.sorting import SLICE, by_hour

WINDOW_S = 60
_WINDOW_US = WINDOW_S * 1_000_000
_HOUR_US = 60 * _WINDOW_US


def service(attempts: DataFrame, slices: int = 1) -> DataFrame:
    """Return rows of silver.service from sound rows of bronze.attempts.

    A run may last over many windows. An attempt without a run adds nothing. A run of length zero
    counts as started and finished in its window. slices: number of tasks of Spark for an hour.
    """
    window, busy, outcome = F.col("window"), F.col("busy_us"), F.col("outcome")
    ends_here = window == F.col("last")
    return (
        attempts.where(F.col("started_at").isNotNull())
        .transform(_pieces)
        .withColumn("hour", window - window % _HOUR_US)
        .transform(by_hour, slices, "queue", "fairness_key", "name")
        .groupBy(SLICE, "hour", "window", "queue", "fairness_key", "name")
        .agg(
            F.max("weight").alias("weight"),
            F.sum(busy).alias("busy_us"),
            F.round(F.sum(busy / F.col("weight")), 3).alias("weighted_us"),
            F.count_if(window == F.col("first")).alias("attempts_started"),
            F.count_if(ends_here & (outcome == "done")).alias("attempts_done"),
            F.count_if(ends_here & outcome.isin("failed", "retried", "timed_out", "lost")).alias(
                "failed"
            ),
            F.sum(F.when(outcome.isin("done", "snoozed"), 0).otherwise(busy)).alias("wasted_us"),
            F.max(F.when(busy > 0, F.col("run_us")).otherwise(0)).alias("longest_run_us"),
        )
        .withColumns(
            {
                "window_start": F.timestamp_micros(window),
                "window_s": F.lit(WINDOW_S),
            }
        )
        .select(*SERVICE.column_names)
    )


def _pieces(runs: DataFrame) -> DataFrame:
    """Return one row for each run and each window it touches, with the `busy_us` spent in that
    window."""
    start, finish, window = F.col("start"), F.col("finish"), F.col("window")
    inside = F.least(finish, window + _WINDOW_US) - F.greatest(start, window)
    return (
        runs.withColumns(
            {"start": F.unix_micros("started_at"), "finish": F.unix_micros("finished_at")}
        )
        .select("queue", "fairness_key", "name", "weight", "outcome", "start", "finish")
        .withColumns({"first": start - start % _WINDOW_US, "last": finish - finish % _WINDOW_US})
        .withColumn(
            "window", F.explode(F.sequence(F.col("first"), F.col("last"), F.lit(_WINDOW_US)))
        )
        .withColumns({"busy_us": inside, "run_us": finish - start})
    )
