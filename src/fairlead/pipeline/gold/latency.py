"""Latencies: counts in logarithmic buckets, which can be added over any time and key, and
percentiles from these counts."""

from __future__ import annotations

from functools import reduce
from math import log

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.definitions.latency import ERROR_BOUND, GROWTH, LATENCY, LATENCY_HIST
from fairlead.pipeline.definitions.windows import ALL, DAY, HOUR
from fairlead.pipeline.gold import window_start
from fairlead.pipeline.gold.measures import measures
from fairlead.pipeline.schema import SCHEMA_VERSION
from fairlead.pipeline.sorting import SORTER, sorter, together

_PER_MILLE = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}


def latency_hist(attempts: DataFrame, zone: str = "UTC", few: bool = False) -> DataFrame:
    """Return LATENCY_HIST from sound rows of bronze.attempts, by hours of business days of `zone`.

    few: whether one task of Spark takes in all rows.
    """
    of_name = ["hour", "queue", "name"]
    runs = attempts.select(
        window_start(F.col("finished_at"), HOUR, zone).alias("hour"),
        "queue",
        "name",
        "fairness_key",
        *(us.alias(measure) for measure, us in measures().items()),
    )
    # Shuffle the runs and then count by key: there are nearly as many counts as runs, and a run has
    # several of them. Count over all keys before the shuffle, because these counts are few.
    placed = together(runs, few, *of_name, "fairness_key")
    by_key = _counts(placed, *of_name, "fairness_key")
    all_keys = _counts(placed if few else runs, *of_name).withColumn("fairness_key", F.lit(ALL))
    return (
        by_key.filter(F.col("fairness_key") != ALL)
        .unionByName(all_keys)
        .withColumn("schema_version", F.lit(SCHEMA_VERSION).cast("smallint"))
        .select(*LATENCY_HIST.column_names)
    )


def latency(
    hist: DataFrame, *windows: int, least: int = 1, zone: str = "UTC", few: bool = False
) -> DataFrame:
    """Return LATENCY from LATENCY_HIST of whole business days, in windows of these lengths:
    seconds, whole hours, at most a day.

    least: number of attempts from which a key has a row of a window that is shorter than a day.
    few: whether one task of Spark takes in all rows.
    """
    # Shuffle the rows once: windows of any size lie within a day.
    days = hist.withColumn("day", window_start(F.col("hour"), DAY, zone))
    of_days = together(days, few, *_OF_DAY)
    found = [_percentiles(of_days, window_s, least, zone) for window_s in windows]
    return reduce(DataFrame.unionByName, found)


_OF_DAY = ("day", "queue", "name", "fairness_key", "measure")


def _percentiles(hist: DataFrame, window_s: int, least: int, zone: str) -> DataFrame:
    group = (*_OF_DAY, "window_start")
    in_order = Window.partitionBy(SORTER, *group).orderBy("bucket")
    up_to_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    counts = hist.withColumn("window_start", window_start(F.col("hour"), window_s, zone))
    if window_s > HOUR:
        counts = counts.groupBy(*group, "bucket").agg(
            F.sum("n").alias("n"), F.max("max_us").alias("max_us")
        )
    is_shown = (F.col("n_all") >= least) | (F.col("fairness_key") == ALL)
    return (
        counts.withColumn(SORTER, sorter(*group))
        .withColumns({"n_up_to": F.sum("n").over(up_to_here), "n_all": F.sum("n").over(whole)})
        .where(is_shown if window_s < DAY else F.lit(True))
        .withColumn("value", _value())
        .groupBy(*group)
        .agg(
            F.sum("n").alias("n"),
            *(_percentile(per_mille).alias(name) for name, per_mille in _PER_MILLE.items()),
            F.max("max_us").alias("max_us"),
        )
        .withColumn("window_s", F.lit(window_s))
        .withColumn("error_bound", F.lit(ERROR_BOUND))
        .withColumn("schema_version", F.lit(SCHEMA_VERSION).cast("smallint"))
        .select(*LATENCY.column_names)
    )


def _counts(runs: DataFrame, *group: str) -> DataFrame:
    measured = F.array(
        *(
            F.struct(F.lit(measure).alias("measure"), F.col(measure).alias("us"))
            for measure in measures()
        )
    )
    return (
        runs.select(*group, F.inline(measured))
        .filter(F.col("us").isNotNull())
        .groupBy(*group, "measure", _bucket(F.col("us")).alias("bucket"))
        .agg(F.count("us").alias("n"), F.max("us").alias("max_us"))
    )


def _bucket(us: Expression) -> Expression:
    return F.ceil(F.log(F.greatest(us, F.lit(1))) / log(GROWTH)).cast("int")


def _value() -> Expression:
    """Return the value that represents a bucket: the harmonic mean of its bounds, whose relative
    error is the same at both bounds, but no more than the greatest duration in the bucket."""
    middle = 2 / (GROWTH + 1) * F.pow(F.lit(GROWTH), F.col("bucket"))
    return F.least(middle, F.col("max_us"))


def _percentile(per_mille: int) -> Expression:
    # Compare integers, because 0.999 * n may be just above the right rank.
    return F.min(F.when(F.col("n_up_to") * 1000 >= F.col("n_all") * per_mille, F.col("value")))
