"""Fairness of a queue in each window, between the keys with a backlog throughout the window."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.models import FAIRNESS

NOISY_FROM = 0.1
"""Least share of the service that a key must have to be named as `noisy_key`."""


def fairness(share: DataFrame) -> DataFrame:
    """Return FAIRNESS from gold.tenant_share."""
    per_weight_us = F.col("busy_us") / F.col("weight")
    longest_us = F.col("longest_run_us") / F.col("weight")
    loud = (F.col("share") >= NOISY_FROM) & (F.col("entitled_us") > 0)
    per_entitlement = F.struct(
        F.try_divide(F.col("share"), F.col("entitled_us")).alias("score"), "fairness_key"
    )
    noisiest = F.max(F.when(loud, per_entitlement))
    return (
        share.withColumn("got", _backlogged(F.try_divide(F.col("busy_us"), F.col("entitled_us"))))
        .groupBy("window_start", "window_s", "queue")
        .agg(
            _jain().alias("jain"),
            F.count_if("throughout").cast("int").alias("n_keys"),
            F.when(F.count("got") >= 2, F.try_divide(F.max("got"), F.min("got"))).alias(
                "max_min_ratio"
            ),
            F.max(F.struct("lag_us", "fairness_key")).alias("most_behind"),
            _spread(per_weight_us).alias("sfq_gap"),
            _two_largest(longest_us).alias("sfq_bound"),
            _spread(F.col("claimed") / F.col("weight")).alias("claim_gap"),
            _two_largest(1 / F.col("weight")).alias("claim_bound"),
            F.count_if("starved").cast("int").alias("starved_keys"),
            noisiest["fairness_key"].alias("noisy_key"),
            (noisiest["score"] * F.sum("entitled_us")).alias("noisy_score"),
        )
        .withColumn("max_lag_us", F.col("most_behind.lag_us"))
        .withColumn("max_lag_key", F.col("most_behind.fairness_key"))
        .withColumn("bound_ok", F.col("sfq_gap") <= F.col("sfq_bound"))
        .select(*FAIRNESS.column_names)
    )


def _backlogged(value: Expression) -> Expression:
    return F.when(F.col("throughout"), value)


def _jain() -> Expression:
    """Return the index of Jain, Chiu and Hawe 1984: (sum x)^2 / (n sum x^2); 1 when every key got
    nothing."""
    got = F.col("got")
    index = F.try_divide(F.sum(got) * F.sum(got), F.count(got) * F.sum(got * got))
    # Rounding can put an even split just above 1.
    return F.when(F.count(got) >= 2, F.least(F.coalesce(index, F.lit(1.0)), F.lit(1.0)))


def _spread(value: Expression) -> Expression:
    value = _backlogged(value)
    return F.when(F.count(value) >= 2, F.max(value) - F.min(value))


def _two_largest(value: Expression) -> Expression:
    largest = F.sort_array(F.collect_list(_backlogged(value)), asc=False)
    return F.get(largest, F.lit(0)) + F.get(largest, F.lit(1))
