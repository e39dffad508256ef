"""The runs of generated tasks: how often each task runs; when it waits, starts, ends and is
exported. The rows have few columns, so they are cheap to sort before `record` makes attempts of
them. Instants are bigint microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from math import log
from operator import add

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.clock import MICROS
from tests.generate.arrivals import arrivals
from tests.generate.chance import Chance
from tests.generate.truth import Truth

EXPORT_EVERY_US = 60 * MICROS
_HOUR_US = 3600 * MICROS
_CALLED_US = 2000
"""Microseconds from the claim to the call of the handler."""

TASK = ("tenant", "task")
"""The key columns of a generated task; with `run`, of a generated run."""


def timed(spark: SparkSession, truth: Truth) -> DataFrame:
    """Return (tenant, task, work, run, cancelled, failures, submitted, due, ready, claimed,
    started, finished, exported)."""
    return (
        arrivals(spark, truth)
        .transform(_with_fate, truth)
        .transform(_with_runs, truth)
        .transform(_with_clocks, truth)
        .transform(_with_exports, truth)
    )


def of_work(values: Sequence[str | int | float | None]) -> Column:
    """Return the value for the row's kind of work. `values`: one for each of `truth.works`."""
    return F.get(F.array(*map(F.lit, values)), F.col("work"))


def _with_fate(tasks: DataFrame, truth: Truth) -> DataFrame:
    """Add the index of the task's kind of work in `truth.works`, whether the task is cancelled, and
    the number of its failures before a success."""
    chance = Chance(truth.seed)
    up_to = list(accumulate(work.part for work in truth.works))
    work = reduce(
        add, ((F.col("drawn") >= part / up_to[-1]).cast("int") for part in up_to[:-1]), F.lit(0)
    )
    # The number of failures before a success has a geometric distribution: ln u / ln p for a
    # uniform u and the probability p of a failure; 0 for a kind of work that never fails.
    per_failure = of_work([1 / log(work.failing) if work.failing else 0.0 for work in truth.works])
    return (
        tasks.withColumn("drawn", chance.uniform("work", *TASK))
        .withColumn("work", work)
        .withColumn("cancelled", chance.uniform("cancelled", *TASK) < truth.cancelled)
        .withColumn(
            "failures", F.floor(F.log(chance.uniform("fails", *TASK)) * per_failure).cast("int")
        )
        .drop("drawn")
    )


def _with_runs(tasks: DataFrame, truth: Truth) -> DataFrame:
    """Return one row for each run, or for the end of a cancelled task; `ready` follows from the
    previous runs."""
    last = F.when(F.col("cancelled"), 1).otherwise(
        F.least(F.col("failures") + 1, F.lit(truth.most_runs))
    )

    def until_next(run: Column) -> Column:
        delay_us = (truth.first_delay_s * MICROS * F.pow(F.lit(2.0), run - 1)).cast("bigint")
        return _pickup_us(truth, run) + _CALLED_US + _length_us(truth, run) + delay_us

    nothing = F.lit(0).cast("bigint")
    earlier = F.sequence(F.lit(1), F.col("run") - 1)
    spent_us = F.aggregate(earlier, nothing, lambda spent, run: spent + until_next(run))
    return tasks.withColumn("run", F.explode(F.sequence(F.lit(1), last))).withColumn(
        "ready", F.col("submitted") + F.when(F.col("run") == 1, nothing).otherwise(spent_us)
    )


def _pickup_us(truth: Truth, run: Column) -> Column:
    mean_s = F.when(F.col("burst"), truth.burst_pickup_s).otherwise(truth.pickup_s)
    return (Chance(truth.seed).exponential("pickup", *TASK, run) * mean_s * MICROS).cast("bigint")


def _length_us(truth: Truth, run: Column) -> Column:
    median_s, sigma = (
        of_work([getattr(work, field) for work in truth.works]) for field in ("median_s", "sigma")
    )
    normal = Chance(truth.seed).normal("length", *TASK, run)
    return (median_s * F.exp(sigma * normal) * MICROS).cast("bigint")


def _with_clocks(runs: DataFrame, truth: Truth) -> DataFrame:
    """Add the times at which the run was claimed, started and finished, by the clock of its
    node."""
    chance, run, is_run = Chance(truth.seed), F.col("run"), ~F.col("cancelled")
    stepped = chance.uniform("stepped", *TASK, run) < truth.stepped
    back_us = (1 + chance.below(60, "step", *TASK, run)).cast("bigint") * MICROS
    finished = F.col("started") + F.when(stepped, -back_us).otherwise(_length_us(truth, run))
    return (
        runs.withColumn("taken", F.col("ready") + _pickup_us(truth, run))
        .withColumn("claimed", F.when(is_run, F.col("taken")))
        .withColumn("started", F.col("claimed") + _CALLED_US)
        .withColumn("finished", F.when(is_run, finished).otherwise(F.col("taken")))
        .drop("taken", "burst")
    )


def _with_exports(runs: DataFrame, truth: Truth) -> DataFrame:
    """Add the export time of each row: the end of its minute, or hours later for late rows. Repeat
    the rows that are exported twice."""
    chance, run = Chance(truth.seed), F.col("run")
    late = chance.uniform("late", *TASK, run) < truth.late
    late_us = (
        _HOUR_US * (1 + (truth.late_hours - 1) * chance.uniform("how late", *TASK, run))
    ).cast("bigint")
    seen = F.col("finished") + F.when(late, late_us).otherwise(0)
    rows = runs.withColumn(
        "exported", seen - F.pmod(seen, F.lit(EXPORT_EVERY_US)) + EXPORT_EVERY_US
    )
    if not truth.doubled:
        return rows
    doubled = chance.uniform("doubled", *TASK, run) < truth.doubled
    once, twice = F.array(F.lit(0)), F.array(F.lit(0), F.lit(EXPORT_EVERY_US))
    return (
        rows.withColumn("again", F.explode(F.when(doubled, twice).otherwise(once)))
        .withColumn("exported", F.col("exported") + F.col("again"))
        .drop("again")
    )
