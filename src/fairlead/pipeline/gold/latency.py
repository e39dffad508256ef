"""Latencies: of all keys together, counts in logarithmic buckets, which can be added over any time,
and percentiles from these counts; of each key, percentiles by a sketch (Greenwald and Khanna 2001),
which is exact while a key has few attempts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import log

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold import window_start
from fairlead.pipeline.gold.measures import measures
from fairlead.pipeline.models import LATENCY, LATENCY_HIST
from fairlead.pipeline.sorting import SORTER, sorter, together
from fairlead.pipeline.windows import ALL, DAY, GROWTH, HOUR

_PER_MILLE = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}

ACCURACY = 10_000
"""Inverse of the greatest error in the rank of a key's percentile, as a part of its attempts."""


def latency_hist(attempts: DataFrame, few: bool = False) -> DataFrame:
    """Return LATENCY_HIST from sound rows of bronze.attempts of whole hours.

    few: whether one task of Spark takes in all rows.
    """
    runs = _durations(attempts).withColumn("fairness_key", F.lit(ALL))
    return (
        # Count before the shuffle, because there are few counts.
        _counts(runs.coalesce(1) if few else runs, "hour", "queue", "name", "fairness_key").select(
            *LATENCY_HIST.column_names
        )
    )


def latency(hist: DataFrame, *windows: int, few: bool = False) -> DataFrame:
    """Return the rows of LATENCY of all keys together, from LATENCY_HIST of whole days, in windows
    of these lengths: seconds, whole hours, at most a day.

    few: whether one task of Spark takes in all rows.
    """
    # Shuffle the rows once: windows of any size lie within a day.
    days = hist.where(F.col("fairness_key") == ALL).withColumn(
        "day", window_start(F.col("hour"), DAY)
    )
    of_days = together(days, few, *_OF_DAY)
    return reduce(DataFrame.unionByName, (_percentiles(of_days, w) for w in windows))


def latency_of_keys(
    attempts: DataFrame, *windows: int, least: int = 1, few: bool = False
) -> DataFrame:
    """Return the rows of LATENCY of each key from sound rows of bronze.attempts of whole days,
    in windows of these lengths: seconds, whole hours, at most a day.

    least: number of attempts from which a key has a row of a window that is shorter than a day.
    few: whether one task of Spark takes in all rows.
    """
    # Shuffle the runs once: windows of any size lie within a day.
    days = _durations(attempts).where(F.col("fairness_key") != ALL)
    days = days.withColumn("day", window_start(F.col("hour"), DAY))
    runs = together(days, few, *_OF_KEY)
    is_shown = (F.col("window_s") == DAY) | (F.col("n") >= least)
    return reduce(DataFrame.unionByName, (_of_keys(runs, w) for w in windows)).where(is_shown)


_OF_KEY = ("day", "queue", "name", "fairness_key")
_OF_DAY = (*_OF_KEY, "measure")


def _durations(attempts: DataFrame) -> DataFrame:
    """Return one row for each attempt, with its measures in microseconds."""
    return attempts.select(
        window_start(F.col("finished_at"), HOUR).alias("hour"),
        "queue",
        "name",
        "fairness_key",
        *(us.alias(measure) for measure, us in measures().items()),
    )


def _by_measure(values: Callable[[str], Expression]) -> Expression:
    """Return an expression that makes a row (measure, us) for each measure."""
    return F.inline(
        F.array(
            *(
                F.struct(F.lit(measure).alias("measure"), values(measure).alias("us"))
                for measure in measures()
            )
        )
    )


def _counts(runs: DataFrame, *group: str) -> DataFrame:
    return (
        runs.select(*group, _by_measure(F.col))
        .where("us IS NOT NULL")
        .groupBy(*group, "measure", _bucket(F.col("us")).alias("bucket"))
        .agg(F.count("us").alias("n"), F.max("us").alias("max_us"))
    )


def _of_keys(runs: DataFrame, window_s: int) -> DataFrame:
    """Return percentiles of each key by nearest rank."""
    group = (*_OF_KEY, "window_start")
    shares = F.array(*(F.lit(per_mille / 1000) for per_mille in _PER_MILLE.values()))

    def sketch(us: Expression) -> Expression:
        return F.struct(
            F.count(us).alias("n"),
            F.percentile_approx(us, shares, ACCURACY).alias("at"),
            F.max(us).alias("max_us"),
        )

    return (
        runs.withColumn("window_start", window_start(F.col("hour"), window_s))
        .withColumn(SORTER, sorter(*group))
        .groupBy(SORTER, *group)
        .agg(*(sketch(F.col(measure)).alias(measure) for measure in measures()))
        .select(*group, _by_measure(F.col))
        .select(*group, "measure", "us.*")
        .where("n > 0")
        .withColumns(
            {
                "window_s": F.lit(window_s),
                **{
                    name: F.col("at")[number].cast("double")
                    for number, name in enumerate(_PER_MILLE)
                },
                "error_bound": F.lit(0.0),
            }
        )
        .select(*LATENCY.column_names)
    )


def _percentiles(hist: DataFrame, window_s: int) -> DataFrame:
    group = (*_OF_DAY, "window_start")
    in_order = Window.partitionBy(*group).orderBy("bucket")
    up_to_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    counts = hist.withColumn("window_start", window_start(F.col("hour"), window_s))
    if window_s > HOUR:
        counts = counts.groupBy(*group, "bucket").agg(
            F.sum("n").alias("n"), F.max("max_us").alias("max_us")
        )
    return (
        counts.withColumns(
            {"n_up_to": F.sum("n").over(up_to_here), "n_all": F.sum("n").over(whole)}
        )
        .withColumn("value", _value())
        .groupBy(*group)
        .agg(
            F.sum("n").alias("n"),
            *(_percentile(per_mille).alias(name) for name, per_mille in _PER_MILLE.items()),
            F.max("max_us").alias("max_us"),
        )
        .withColumn("window_s", F.lit(window_s))
        .withColumn("error_bound", F.lit(0.01))
        .select(*LATENCY.column_names)
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
