"""Stays: the time of a task in its queue and at its worker. Each stay becomes changes of two
counts, the tasks waiting and the tasks running, at offsets in an hour.

A stay that began before the hour becomes a change at the offset BEFORE, so that the counts of an
hour need only the stays that overlap the hour.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.clock import MICROS
from fairlead.pipeline.sorting import SLICE, SORTER, sorter

MINUTE = 60 * MICROS
HOUR = 60 * MINUTE
"""An hour in microseconds. As an offset in an hour, HOUR stands for all instants after the hour."""

BEFORE = -MINUTE
"""Offset of all instants before the hour."""

IN_HOUR = (SORTER, "hour", SLICE, "queue", "fairness_key")
"""Columns that identify the hour of a key; `hour` in microseconds since the epoch."""

CHANGES = ("arrived", "arrived_us", "claimed", "strides", "depth", "work", "running", "run_from")
"""Columns that are summed: tasks that became ready and their worker time; tasks claimed, and the
sum of 1 / weight of these; change of the number waiting; worker time still to be spent; change of
the number running; sum of the offsets at which runs began."""


def of_attempts(attempts: DataFrame) -> DataFrame:
    """Return the stay of each sound attempt: waiting in [ready, left) and running in [start,
    finish), in microseconds since the epoch.

    Clocks of machines may differ. So ready_at and claimed_at count as at most finished_at, which
    decides the partition of the row; no wait is negative; and no run starts before its task was
    ready.
    """
    finished, claimed = F.unix_micros("finished_at"), F.unix_micros("claimed_at")
    ready = F.least(F.unix_micros("ready_at"), finished)
    has_run = F.col("started_at").isNotNull()
    ended_by_hand = ~has_run & F.col("outcome").isin("cancelled", "failed")
    # The row of a task that a person ended has the times of the run before: no node claimed the
    # task since it became ready again.
    is_claimed = F.col("claimed_at").isNotNull() & ~(
        ended_by_hand & (F.col("claimed_at") < F.col("ready_at"))
    )
    return (
        # A task that a person marked as failed was not waiting for a run.
        attempts.where(
            F.col("ready_at").isNotNull() & ~(ended_by_hand & (F.col("outcome") == "failed"))
        ).select(
            "queue",
            "fairness_key",
            "weight",
            ready.alias("ready"),
            F.greatest(
                ready, F.when(is_claimed, F.least(claimed, finished)).otherwise(finished)
            ).alias("left"),
            is_claimed.alias("is_claimed"),
            F.when(has_run, F.greatest(ready, F.unix_micros("started_at")))
            .otherwise(ready)
            .alias("start"),
            F.when(has_run, finished).otherwise(ready).alias("finish"),
            F.when(has_run, finished - F.unix_micros("started_at")).otherwise(0).alias("run_us"),
        )
    )


def of_waiting(waiting: DataFrame, end: int) -> DataFrame:
    """Return a stay for each row of `waiting`, from ready until `end`, without known work."""
    ready = F.unix_micros("ready_at")
    return waiting.select(
        "queue",
        "fairness_key",
        "weight",
        ready.alias("ready"),
        F.greatest(ready, F.lit(end)).alias("left"),
        F.lit(False).alias("is_claimed"),
        ready.alias("start"),
        ready.alias("finish"),
        F.lit(0).cast("bigint").alias("run_us"),
    )


def by_hour(
    stays: DataFrame, first: int, end: int, only: Collection[int] | None = None
) -> DataFrame:
    """Return one row for each hour in [first, end) that a stay touches; with `only`, for those of
    these hours."""
    end_of_stay = F.greatest("left", "finish")
    hours = F.sequence(
        F.greatest(floor(F.col("ready"), HOUR), F.lit(first)),
        F.least(floor(end_of_stay, HOUR), F.lit(end - HOUR)),
        F.lit(HOUR),
    )
    touched = stays.where((F.col("ready") < end) & (end_of_stay >= first)).withColumn(
        "hour", F.explode(hours)
    )
    if only is not None:
        touched = touched.where(F.col("hour").isin(*only))
    return touched.withColumn(SORTER, sorter("hour", "queue", "fairness_key"))


def changes(stays: DataFrame) -> DataFrame:
    """Return one row for each `offset` (microseconds into the hour) at which a stay changes a
    number.

    The number of waiting tasks changes at whole seconds, all other numbers at whole minutes. Each
    row has CHANGES, the stay's `weight` and, where the stay leaves the queue, its ready instant as
    `oldest`.
    """
    offset = F.col("offset")
    ready, left, start, finish = (
        F.col(f"{name}_minute") for name in ("ready", "left", "start", "finish")
    )
    from_second, to_second = F.col("ready_second"), F.col("left_second")
    # The number waiting is counted once a second, so a wait within one second does not change it.
    # Such a wait counts only in the sums of its minutes.
    seconds = (
        F.when(from_second != to_second, second).otherwise(ready)
        for second in (from_second, to_second)
    )
    outstanding = F.greatest(F.col("finish") - F.greatest("start", "hour"), F.lit(0))
    return (
        stays.withColumns(
            {
                f"{name}_minute": _offset(name, MINUTE)
                for name in ("ready", "left", "start", "finish")
            }
        )
        .withColumns({f"{name}_second": _offset(name, MICROS) for name in ("ready", "left")})
        .withColumn(
            "offset", F.explode(F.array_distinct(F.array(ready, left, start, finish, *seconds)))
        )
        .select(
            *IN_HOUR,
            "offset",
            "weight",
            when(ready == offset, 1).alias("arrived"),
            when(ready == offset, F.col("run_us")).alias("arrived_us"),
            when((left == offset) & F.col("is_claimed"), 1).alias("claimed"),
            when((left == offset) & F.col("is_claimed"), 1 / F.col("weight")).alias("strides"),
            (when(from_second == offset, 1) - when(to_second == offset, 1)).alias("depth"),
            when(ready == offset, outstanding).alias("work"),
            (when(start == offset, 1) - when(finish == offset, 1)).alias("running"),
            (
                when(start == offset, _into_hour("start"))
                - when(finish == offset, _into_hour("finish"))
            ).alias("run_from"),
            F.when(left == offset, F.col("ready")).alias("oldest"),
        )
    )


def floor(micros: Column, grid: int) -> Column:
    """Return the greatest multiple of `grid` that is not above `micros`."""
    return micros - F.pmod(micros, F.lit(grid))


def when(condition: Column, value: Column | int) -> Column:
    """Return the value where the condition holds, else 0."""
    return F.when(condition, value).otherwise(0)


def _offset(instant: str, grid: int) -> Column:
    """Return the offset of an instant in its hour: a multiple of `grid`, BEFORE or HOUR."""
    into = F.col(instant) - F.col("hour")
    return F.when(into < 0, BEFORE).when(into >= HOUR, HOUR).otherwise(floor(into, grid))


def _into_hour(instant: str) -> Column:
    return F.least(F.greatest(F.col(instant) - F.col("hour"), F.lit(0)), F.lit(HOUR))
