"""A task's stay in its queue and with its worker, told as changes: from this second of the hour on
one more, or one less.

What lasts from before the hour is a change a minute before it, so that an hour needs nothing but
what overlaps it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.clock import MICROS
from fairlead.pipeline.sorting import SORTER, sorter

MINUTE = 60 * MICROS
HOUR = 60 * MINUTE
"""In microseconds; as a place in an hour: after it."""

BEFORE = -MINUTE
"""Place of what began before the hour."""

IN_HOUR = (SORTER, "hour", "queue", "fairness_key")
"""Whose hour it is; `hour` in microseconds since 1970."""

CHANGES = ("arrived", "arrived_us", "claimed", "depth", "work", "running", "run_from")
"""What adds up: counts and worker time of those who became ready; who was claimed; change of the
number waiting; worker time still to be spent; change of the number running; and of where in the
hour their runs began, added up."""

_STAY = (
    "queue",
    "fairness_key",
    "weight",
    "ready",
    "left",
    "is_claimed",
    "start",
    "finish",
    "run_us",
)


def of_attempts(attempts: DataFrame) -> DataFrame:
    """Each sound attempt waits in [ready, left) and runs in [start, finish), all in microseconds
    since 1970.

    Clocks of several machines may differ: nothing is taken to be later than finished_at, by whose
    hour the rows are kept, nobody waits less than no time, and no run counts before its task was
    ready.
    """
    finished, claimed = F.unix_micros("finished_at"), F.unix_micros("claimed_at")
    ready = F.least(F.unix_micros("ready_at"), finished)
    has_run = F.col("started_at").isNotNull()
    ended_by_hand = ~has_run & F.col("outcome").isin("cancelled", "failed")
    # What a person ends still carries the times of the run before: it was not taken since it became
    # ready again.
    is_claimed = F.col("claimed_at").isNotNull() & ~(
        ended_by_hand & (F.col("claimed_at") < F.col("ready_at"))
    )
    return (
        # A task is marked failed when its runs are over and done with; it waited for none.
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
    """Each row of `waiting` waits from ready on until `end`; its work is not known."""
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


def by_hour(stays: DataFrame, first: int, end: int) -> DataFrame:
    """One row for each hour in [first, end) that a stay touches."""
    gone = F.greatest("left", "finish")
    hours = F.sequence(
        F.greatest(floor(F.col("ready"), HOUR), F.lit(first)),
        F.least(floor(gone, HOUR), F.lit(end - HOUR)),
        F.lit(HOUR),
    )
    return (
        stays.where((F.col("ready") < end) & (gone >= first))
        .withColumn("hour", F.explode(hours))
        .withColumn(SORTER, sorter("hour", "queue", "fairness_key"))
    )


def changes(stays: DataFrame) -> DataFrame:
    """One row for each `place` (microseconds into the hour) where a stay changes anything: the
    number waiting at the second, all else at the minute. Beside CHANGES the stay's `weight`, and
    where it leaves its ready instant, `oldest`."""
    place = F.col("place")
    ready, left, start, finish = (
        F.col(f"{name}_minute") for name in ("ready", "left", "start", "finish")
    )
    from_second, to_second = F.col("ready_second"), F.col("left_second")
    # A wait inside one second is not seen on the grid: it changes nothing but what its minutes say.
    seconds = (
        F.when(from_second != to_second, second).otherwise(ready)
        for second in (from_second, to_second)
    )
    outstanding = F.greatest(F.col("finish") - F.greatest("start", "hour"), F.lit(0))
    return (
        stays.withColumns(
            {
                f"{name}_minute": _place(name, MINUTE)
                for name in ("ready", "left", "start", "finish")
            }
        )
        .withColumns({f"{name}_second": _place(name, MICROS) for name in ("ready", "left")})
        .withColumn(
            "place", F.explode(F.array_distinct(F.array(ready, left, start, finish, *seconds)))
        )
        .select(
            *IN_HOUR,
            "place",
            "weight",
            when(ready == place, 1).alias("arrived"),
            when(ready == place, F.col("run_us")).alias("arrived_us"),
            when((left == place) & F.col("is_claimed"), 1).alias("claimed"),
            (when(from_second == place, 1) - when(to_second == place, 1)).alias("depth"),
            when(ready == place, outstanding).alias("work"),
            (when(start == place, 1) - when(finish == place, 1)).alias("running"),
            (
                when(start == place, _into_hour("start"))
                - when(finish == place, _into_hour("finish"))
            ).alias("run_from"),
            F.when(left == place, F.col("ready")).alias("oldest"),
        )
    )


def floor(micros: Column, grid: int) -> Column:
    """The greatest multiple of `grid` that is not above."""
    return micros - F.pmod(micros, F.lit(grid))


def when(condition: Column, value: Column | int) -> Column:
    """The value where the condition holds, else 0."""
    return F.when(condition, value).otherwise(0)


def _place(instant: str, grid: int) -> Column:
    """Where in the hour an instant falls: a multiple of `grid`, BEFORE it or HOUR for after it."""
    into = F.col(instant) - F.col("hour")
    return F.when(into < 0, BEFORE).when(into >= HOUR, HOUR).otherwise(floor(into, grid))


def _into_hour(instant: str) -> Column:
    return F.least(F.greatest(F.col(instant) - F.col("hour"), F.lit(0)), F.lit(HOUR))
