"""Backlog by key and minute: the number of waiting tasks, the work left to do, and the oldest
ready_at.

A stay is the time of a task in its queue and at its worker (see `stays`). The changes by all stays
are summed by second, then accumulated along each hour.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.clock import to_micros
from fairlead.pipeline.models import BACKLOG
from fairlead.pipeline.silver import stays
from fairlead.pipeline.silver.stays import CHANGES, HOUR, IN_HOUR, MINUTE, floor, when
from fairlead.pipeline.sorting import by_hour

_OF_MINUTE = ("arrived", "arrived_us", "claimed", "strides", "depth")
"""Columns of `stays.CHANGES` that count in the minute of the change only."""


def backlog(
    attempts: DataFrame,
    waiting: DataFrame,
    since: datetime,
    until: datetime,
    known: datetime | None = None,
    only: Collection[datetime] | None = None,
    slices: int = 1,
) -> DataFrame:
    """Return rows of silver.backlog for the minutes in [since, until).

    attempts: sound rows of bronze.attempts. waiting: rows of `waiting`. Both may hold rows
    outside this interval. known: the instant up to which history is known (default: `until`); a
    task that still waits is counted up to the minute of this instant. only: the hours in the
    interval that are wanted, all by default. slices: number of tasks of Spark for an hour. Raise
    ValueError for bounds that are naive or not whole hours.
    """
    first, end = to_micros(since), to_micros(until)
    if first % HOUR or end % HOUR:
        raise ValueError(f"the backlog is built by whole hours, not from {since} to {until}")
    return (
        attempts.transform(stays.of_attempts)
        .unionByName(
            waiting.transform(
                stays.of_waiting, min(end, -(-to_micros(known or until) // MINUTE) * MINUTE)
            )
        )
        .transform(stays.by_hour, first, end, None if only is None else [*map(to_micros, only)])
        # Shuffle the rows once, while there is one row for each hour of a stay: no later step needs
        # rows of two hours.
        .transform(by_hour, slices, "queue", "fairness_key")
        .transform(stays.changes)
        .transform(_minutes)
        .transform(_running_totals)
        .transform(_dense)
        .select(*BACKLOG.column_names)
    )


def _minutes(changes: DataFrame) -> DataFrame:
    """Return the changes of each minute that has changes, with the least depth and the time in
    which any task waited."""
    along = Window.partitionBy(*IN_HOUR).orderBy("offset")
    offset, depth = F.col("offset"), F.col("depth_now")
    until = F.least(F.col("next"), F.col("minute") + MINUTE)
    return (
        changes.groupBy(*IN_HOUR, "offset")
        .agg(
            *[F.sum(name).alias(name) for name in CHANGES],
            F.min("oldest").alias("oldest"),
            F.max("weight").alias("weight"),
        )
        .withColumns(
            {
                "minute": floor(offset, MINUTE),
                "depth_now": (
                    F.sum("depth").over(
                        along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
                    )
                ),
                "next": F.lead("offset", 1, HOUR).over(along),
            }
        )
        .groupBy(*IN_HOUR, "minute")
        .agg(
            *[F.sum(name).alias(name) for name in CHANGES],
            F.min("oldest").alias("oldest"),
            F.max("weight").alias("weight"),
            F.min("depth_now").alias("depth_least"),
            F.sum(when(depth > 0, until - offset)).alias("backlogged"),
            F.min("offset").alias("first_offset"),
        )
    )


def _running_totals(minutes: DataFrame) -> DataFrame:
    """Add running totals, which include stays that began before the hour, and the minute of the
    next change."""
    along = Window.partitionBy(*IN_HOUR).orderBy("minute")
    so_far = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    totals = {
        f"total_{name}": F.sum(name).over(so_far)
        for name in ("depth", "work", "running", "run_from")
    }
    later = along.rowsBetween(1, Window.unboundedFollowing)
    return minutes.withColumns(
        {
            **totals,
            "next": F.lead("minute", 1, HOUR).over(along),
            # A ready task waits now if it leaves the queue in a later minute. So the oldest waiting
            # task has the least ready_at of all tasks that leave later.
            "oldest": F.min("oldest").over(later),
            "weight": (
                F.max("weight").over(
                    along.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
                )
            ),
        }
    ).where(F.col("minute") < HOUR)


def _dense(minutes: DataFrame) -> DataFrame:
    """Return a row for every minute in which a key had tasks or work, changed or not."""
    at, depth_end = F.col("at"), F.col("total_depth")
    is_open = (depth_end > 0) | (_work(F.col("minute") + MINUTE, own=F.lit(0)) > 0)
    last = F.when(is_open, F.col("next") - MINUTE).otherwise(F.col("minute"))
    own, depth_start = F.col("own"), F.col("depth_start")
    before_changes = when(depth_start > 0, F.col("first_offset") - at)
    return (
        minutes.withColumn("at", F.explode(F.sequence("minute", last, F.lit(MINUTE))))
        .withColumn("own", when(at == F.col("minute"), 1))
        .withColumns({name: F.col(name) * own for name in _OF_MINUTE})
        .withColumn("depth_start", depth_end - F.col("depth"))
        .withColumns(
            {
                "minute": F.timestamp_micros(F.col("hour") + at),
                # The last digits of a sum depend on the order of the rows.
                "strides": F.round("strides", 9),
                "depth_end": depth_end,
                "depth_min": (
                    F.when(own == 1, F.least(depth_start, "depth_least")).otherwise(depth_end)
                ),
                "backlogged_us": (
                    F.when(own == 1, F.col("backlogged") + before_changes).otherwise(
                        when(depth_end > 0, MINUTE)
                    )
                ),
                "work_us": _work(at, own),
                "oldest_ready_at": F.timestamp_micros(F.when(depth_end > 0, F.col("oldest"))),
            }
        )
        # Leave out a minute whose only change is a stay that ended just before the minute.
        .where((at >= 0) & (F.greatest("arrived", "claimed", "backlogged_us", "work_us") > 0))
    )


def _work(at: Expression, own: Expression) -> Expression:
    """Return the work outstanding at an offset: the work that was ready, minus what each run has
    had since its start.

    The totals include this minute's changes, which are taken out when `own` is 1.
    """
    ready = F.col("total_work") - F.col("work") * own
    running = F.col("total_running") - F.col("running") * own
    run_from = F.col("total_run_from") - F.col("run_from") * own
    return ready - (at * running - run_from)
