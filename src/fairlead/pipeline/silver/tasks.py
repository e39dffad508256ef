"""Tasks: one row for each task, from all its attempts, or from its submit while it has none."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.models import TASKS
from fairlead.pipeline.sorting import SLICE, SORTER, by_hour, sorter

SHORTEST_RUN_US = 10_000_000
"""Least run time in the slowdown, in microseconds. Without this bound, a task of a millisecond
would dominate every average."""


_CONSTANT = ("queue", "name", "fairness_key", "weight", "priority", "submitted_at")
"""Columns that never change during the life of a task."""

_ENDED = ("DONE", "FAILED", "CANCELLED", "ERROR")


def tasks(attempts: DataFrame, events: DataFrame, slices: int = 1) -> DataFrame:
    """Return rows of silver.tasks.

    attempts: sound rows of bronze.attempts. events: rows of bronze.events, of which only
    `submitted` is used, for tasks without an attempt. Either may lack a task. The attempts decide
    for a task that is in both. slices: number of tasks of Spark for an hour.
    """
    return _summed(attempts.transform(_attempted).unionByName(events.transform(_submitted)), slices)


def continued(known: DataFrame, attempts: DataFrame, slices: int = 1) -> DataFrame:
    """Return rows of silver.tasks of days that bronze has forgotten: the known rows, each with the
    attempts that ended after those it counts, and a row for each task without a known one.

    attempts: sound rows of bronze.attempts, of the same hours of submit. A row of an attempt that
    comes after that of a later one adds nothing.
    """
    counted = known.select(*TASKS.key, F.col("last_finished_at").alias("counted_until"))
    later = (
        attempts.join(counted, list(TASKS.key), "left")
        .where("counted_until IS NULL OR finished_at > counted_until")
        .transform(_attempted)
    )
    return _summed(known.transform(_counted).unionByName(later), slices)


def _summed(rows: DataFrame, slices: int) -> DataFrame:
    return (
        # Most tasks have one attempt, so summing before the shuffle would only sort all rows once
        # more.
        rows.withColumn("hour", F.date_trunc("hour", "submitted_at"))
        .transform(by_hour, slices, *TASKS.key)
        .withColumn(SORTER, sorter(*TASKS.key))
        .groupBy(SORTER, *TASKS.key, "hour", SLICE)
        .agg(
            F.max_by(F.struct(*_CONSTANT, "ordering_key", "next_state", "due_at"), "version").alias(
                "latest"
            ),
            F.min("ready_at").alias("first_ready_at"),
            F.min("claimed_at").alias("first_claimed_at"),
            F.min("started_at").alias("first_started_at"),
            F.max("finished_at").alias("last_finished_at"),
            F.sum("is_run").cast("int").alias("attempts"),
            F.sum("queue_us").alias("queue_us"),
            F.sum("run_us").alias("run_us"),
        )
        .select("*", "latest.*")
        .transform(_judged)
        .select(*TASKS.column_names)
    )


def _attempted(attempts: DataFrame) -> DataFrame:
    """Return one row for each attempt, with the values it adds to its task."""
    waited = F.unix_micros("claimed_at") - F.unix_micros("ready_at")
    ran = F.unix_micros("finished_at") - F.unix_micros("started_at")
    is_run = F.col("started_at").isNotNull() | (F.col("outcome") == "lost")
    # The row of a task that a person marked as failed repeats the times of the last run.
    is_marked_failed = F.col("started_at").isNull() & (F.col("outcome") == "failed")
    return attempts.select(
        "store_id",
        "task_id",
        "version",
        *_CONSTANT,
        "ordering_key",
        "next_state",
        F.lit(None).cast("timestamp").alias("due_at"),
        "ready_at",
        "claimed_at",
        "started_at",
        "finished_at",
        is_run.cast("bigint").alias("is_run"),
        F.when(is_marked_failed, 0).otherwise(F.greatest(waited, F.lit(0))).alias("queue_us"),
        F.coalesce(ran, F.lit(0)).alias("run_us"),
    )


def _submitted(events: DataFrame) -> DataFrame:
    """Return one row for each submit, with the columns of `_attempted`."""
    instant = F.lit(None).cast("timestamp")
    return (
        events.where(F.col("kind") == "submitted")
        .withColumnRenamed("at", "submitted_at")
        .select(
            "store_id",
            "task_id",
            # Use a version below that of every attempt, because an attempt of a task cancelled at
            # once still has the version of the submit.
            F.lit(-1).alias("version"),
            *_CONSTANT,
            F.lit(None).cast("string").alias("ordering_key"),
            F.when(F.col("run_at") > F.col("submitted_at"), "WAITING")
            .otherwise("SUBMITTED")
            .alias("next_state"),
            F.greatest("run_at", "submitted_at").alias("due_at"),
            *[
                instant.alias(name)
                for name in ("ready_at", "claimed_at", "started_at", "finished_at")
            ],
            *[F.lit(0).cast("bigint").alias(name) for name in ("is_run", "queue_us", "run_us")],
        )
    )


def _counted(tasks: DataFrame) -> DataFrame:
    """Return known rows of silver.tasks with the columns of `_attempted`."""
    has_ended = F.col("last_finished_at").isNotNull()
    return tasks.select(
        "store_id",
        "task_id",
        F.lit(-1).alias("version"),
        *_CONSTANT,
        "ordering_key",
        F.col("state").alias("next_state"),
        F.when(~has_ended, F.col("first_ready_at")).alias("due_at"),
        F.when(has_ended, F.col("first_ready_at")).alias("ready_at"),
        F.col("first_claimed_at").alias("claimed_at"),
        F.col("first_started_at").alias("started_at"),
        F.col("last_finished_at").alias("finished_at"),
        F.col("attempts").cast("bigint").alias("is_run"),
        "queue_us",
        "run_us",
    )


def _judged(tasks: DataFrame) -> DataFrame:
    wait = F.unix_micros("first_claimed_at") - F.unix_micros("first_ready_at")
    e2e = F.unix_micros("last_finished_at") - F.unix_micros("submitted_at")
    taken = F.col("queue_us") + F.col("run_us")
    return tasks.withColumns(
        {
            "first_ready_at": F.coalesce("first_ready_at", "due_at"),
            "retries": F.greatest(F.col("attempts") - 1, F.lit(0)),
            "state": F.col("next_state"),
            "wait_us": F.when(wait.isNotNull(), F.greatest(wait, F.lit(0))),
            "e2e_us": F.when(F.col("next_state").isin(*_ENDED), F.greatest(e2e, F.lit(0))),
            "slowdown": F.greatest(
                taken / F.greatest("run_us", F.lit(SHORTEST_RUN_US)), F.lit(1.0)
            ),
        }
    )
