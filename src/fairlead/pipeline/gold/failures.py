"""Failures by hour and kind of error: their number, their cost, and the recovery."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold import window_start
from fairlead.pipeline.gold.measures import elapsed_us, has_failed, is_run
from fairlead.pipeline.models import FAILURES
from fairlead.pipeline.sorting import joined
from fairlead.pipeline.windows import HOUR

STORM_FROM = 100
"""Least number of failed runs of one kind in an hour that make a storm, if they are also more than
half of all runs."""

_WORK = ["hour", "queue", "name"]


def failures(attempts: DataFrame, few: bool = False) -> DataFrame:
    """Return FAILURES from sound rows of bronze.attempts of whole hours.

    few: whether one task of Spark takes in all rows.
    """
    runs = (
        (attempts.coalesce(1) if few else attempts)
        .filter(is_run())
        .withColumn("hour", window_start(F.col("finished_at"), HOUR))
    )
    errors = runs.transform(_counted).transform(_errors)
    return (
        _with_recoveries(errors, runs, few)
        .withColumn("retry_amplification", F.col("all_n") / F.col("all_tasks"))
        .withColumn("storm", (F.col("n") >= STORM_FROM) & (2 * F.col("n") > F.col("all_n")))
        .select(*FAILURES.column_names)
    )


def _counted(runs: DataFrame) -> DataFrame:
    """Sum the runs of one task that have the same error_fp, which is null for runs that did not
    fail.

    Nearly all tasks succeed in their first run. Their runs form one group without a task id, in
    which there are as many tasks as runs.
    """
    single = (F.col("attempt") == 1) & (F.col("next_state") == "DONE") & ~has_failed()
    error_fp = F.when(has_failed(), F.coalesce("error_fp", F.crc32(F.col("outcome"))))
    run_us = F.coalesce(elapsed_us("started_at", "finished_at"), F.lit(0))
    example = F.struct(
        "finished_at", "task_id", F.coalesce("error_type", "outcome").alias("type"), "error_text"
    )
    return runs.groupBy(
        *_WORK,
        error_fp.alias("error_fp"),
        F.when(~single, F.col("task_id")).alias("task_id"),
        F.when(~single, F.col("store_id")).alias("store_id"),
    ).agg(
        F.count(F.lit(1)).alias("n"),
        F.sum(F.when(has_failed(), run_us)).alias("wasted_us"),
        F.min(F.when(has_failed(), example)).alias("earliest"),
        F.max(F.when(has_failed(), F.col("finished_at"))).alias("last_seen"),
    )


def _errors(counted: DataFrame) -> DataFrame:
    """Return the errors, each with the numbers of all runs and all tasks of its queue and name."""
    # A task with several errors counts once. Runs without a task id are as many tasks.
    rows_of_task = Window.partitionBy(*_WORK, "store_id", "task_id").orderBy("error_fp")
    is_first = (F.row_number().over(rows_of_task) == 1).cast("bigint")
    of_work = Window.partitionBy(*_WORK)
    return (
        counted.withColumn("new", F.when(F.col("task_id").isNull(), F.col("n")).otherwise(is_first))
        .groupBy(*_WORK, "error_fp")
        .agg(
            F.sum("n").alias("n"),
            F.count(F.lit(1)).alias("tasks"),
            F.sum("new").alias("new"),
            F.sum("wasted_us").alias("wasted_us"),
            F.min("earliest").alias("earliest"),
            F.max("last_seen").alias("last_seen"),
        )
        .withColumn("all_n", F.sum("n").over(of_work))
        .withColumn("all_tasks", F.sum("new").over(of_work))
        .filter(F.col("error_fp").isNotNull())
        .withColumn("error_type", F.col("earliest.type"))
        .withColumn("error_text", F.col("earliest.error_text"))
        .withColumn("first_seen", F.col("earliest.finished_at"))
        .drop("earliest")
    )


def _with_recoveries(errors: DataFrame, runs: DataFrame, few: bool) -> DataFrame:
    """Return the errors with recovered_at, null for those after which no run succeeded."""
    # Keep only runs that succeeded after the earliest last_seen of their queue and name, because
    # no other run can be a recovery. Where failures are frequent, few runs remain.
    over = errors.groupBy(*_WORK).agg(F.min("last_seen").alias("first_over"))
    good = (
        runs.filter(F.col("outcome") == "done")
        .select(*_WORK, F.col("finished_at").alias("good_at"))
        .join(joined(over, few), on=_WORK, how="inner")
        .filter(F.col("good_at") > F.col("first_over"))
        .select(*_WORK, "good_at")
    )
    # Sort errors and good runs together, latest first, for a running minimum. A join would pair
    # every error with every later good run.
    instant = F.unix_micros(F.coalesce("good_at", "last_seen"))
    later = (
        Window.partitionBy(*_WORK)
        .orderBy(instant.desc())
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    return (
        errors.unionByName(good, allowMissingColumns=True)
        .withColumn("recovered_at", F.min("good_at").over(later))
        .filter(F.col("good_at").isNull())
    )
