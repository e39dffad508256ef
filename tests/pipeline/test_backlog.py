"""The backlog in hand-made cases, and against a simulation that checks every second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.clock import to_datetime, to_micros
from tests.pipeline.frames import T0, at, attempt, attempts_frame, history, records
from tests.pipeline.model_frames import backlog

S = 1_000_000
MINUTE, HOUR = 60 * S, 3600 * S
WAITING = "queue string, fairness_key string, weight double, ready_at timestamp"
MEASURES = (
    "weight",
    "arrived",
    "arrived_us",
    "claimed",
    "strides",
    "depth_end",
    "depth_min",
    "backlogged_us",
    "work_us",
    "oldest_ready_at",
)
Row = dict[str, Any]
Table = dict[tuple[datetime, str, str], Row]


def built(
    spark: SparkSession,
    attempts: Iterable[Row],
    waiting: Iterable[Row] = (),
    first_hour: int = 0,
    end_hour: int = 3,
) -> Table:
    """Return the measures by (minute, queue, fairness key)."""
    names = ("queue", "fairness_key", "weight", "ready_at")
    waits = spark.createDataFrame([tuple(row[name] for name in names) for row in waiting], WAITING)
    since, until = (T0 + timedelta(hours=hours) for hours in (first_hour, end_hour))
    found = records(backlog(attempts_frame(spark, attempts), waits, since, until))
    table = {
        (row["minute"], row["queue"], row["fairness_key"]): {m: row[m] for m in MEASURES}
        for row in found
    }
    assert len(table) == len(found)
    return table


def test_the_backlog_of_some_hours_is_their_part_of_the_backlog_of_all(
    spark: SparkSession,
) -> None:
    rows = [
        attempt(
            fairness_key=f"key-{n % 5}",
            submitted_at=600 * n,
            ready_at=600 * n,
            claimed_at=600 * n + 4000,
            started_at=600 * n + 4000,
            finished_at=600 * n + 4100,
        )
        for n in range(24)
    ]
    attempts = attempts_frame(spark, rows)
    waits = spark.createDataFrame([("q", "key-0", 1.0, T0)], WAITING)
    bounds = (T0, T0 + timedelta(hours=4))
    hours = [T0, T0 + timedelta(hours=2)]
    some = records(backlog(attempts, waits, *bounds, only=hours))
    wanted = [
        row
        for row in records(backlog(attempts, waits, *bounds))
        if row["minute"].replace(minute=0) in hours
    ]
    by_key = itemgetter("minute", "queue", "fairness_key")
    assert len(wanted) > 100
    assert sorted(some, key=by_key) == sorted(wanted, key=by_key)


def minutes(table: Table, *measures: str) -> dict[int, tuple[Any, ...]]:
    """Return measures of a table of one key, by minute after T0."""
    assert len({key[1:] for key in table}) <= 1
    return {
        (key[0] - T0) // timedelta(minutes=1): tuple(row[m] for m in measures)
        for key, row in sorted(table.items())
    }


def waits(**fields: Any) -> Row:
    return {"queue": "q", "fairness_key": "a", "weight": 1.0, "ready_at": T0} | fields


# by hand ------------------------------------------------------------------------------------------


def test_a_wait_and_a_run_over_some_minutes_are_counted_in_each_minute(spark: SparkSession) -> None:
    table = built(spark, [attempt(ready_at=5.5, claimed_at=130.5, started_at=150, finished_at=190)])
    counts = minutes(table, "arrived", "claimed", "depth_end", "depth_min")
    assert counts == {0: (1, 0, 1, 0), 1: (0, 0, 1, 1), 2: (0, 1, 0, 0), 3: (0, 0, 0, 0)}
    times = minutes(table, "arrived_us", "backlogged_us", "work_us")
    assert times == {
        0: (40 * S, 55 * S, 0),
        1: (0, 60 * S, 40 * S),
        2: (0, 10 * S, 40 * S),
        3: (0, 0, 10 * S),
    }
    assert minutes(table, "oldest_ready_at") == {
        0: (at(5.5),),
        1: (at(5.5),),
        2: (None,),
        3: (None,),
    }


def test_a_wait_over_midnight_continues_in_the_first_minute_of_the_day(spark: SparkSession) -> None:
    midnight = 14 * 3600
    rows = [attempt(ready_at=midnight - 30, claimed_at=midnight + 90, finished_at=midnight + 95)]
    table = built(spark, rows, first_hour=13, end_hour=15)
    names = ("arrived", "claimed", "depth_end", "depth_min", "work_us", "oldest_ready_at")
    assert minutes(table, *names) == {
        839: (1, 0, 1, 0, 0, at(midnight - 30)),
        840: (0, 0, 1, 1, 5 * S, at(midnight - 30)),
        841: (0, 1, 0, 0, 5 * S, None),
    }
    assert min(table)[0] == datetime(2026, 3, 2, 23, 59, tzinfo=UTC)
    assert built(spark, rows, first_hour=14, end_hour=15) == {
        key: row for key, row in table.items() if key[0].day == 3
    }


def test_a_task_that_still_waits_is_counted_up_to_the_last_known_minute(
    spark: SparkSession,
) -> None:
    still = spark.createDataFrame([("q", "a", 1.0, T0)], WAITING)
    hours = (T0, T0 + timedelta(hours=1))
    for known, depths in ((at(150), [1, 1, 1]), (at(120), [1, 1]), (at(HOUR / S * 3), [1] * 60)):
        found = records(backlog(attempts_frame(spark, []), still, *hours, known))
        assert [row["depth_end"] for row in sorted(found, key=lambda row: row["minute"])] == depths


# against a simulation -----------------------------------------------------------------------------


def simulated(
    attempts: Iterable[Row], waiting: Iterable[Row], end: datetime = T0 + timedelta(hours=3)
) -> Table:
    """Build the backlog table in plain Python: count every second, and the work of every run."""
    stays: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in attempts:
        if (stay := stay_of(row)) is not None:
            stays[row["queue"], row["fairness_key"]].append(stay)
    for row in waiting:
        ready = to_micros(row["ready_at"])
        forever = to_micros(end) + HOUR
        stay = {
            "ready": ready,
            "left": forever,
            "is_claimed": False,
            "start": ready,
            "finish": ready,
            "run_us": 0,
        }
        stays[row["queue"], row["fairness_key"]].append(stay | {"weight": row["weight"]})
    table: Table = {}
    for key, those in stays.items():
        for minute in range(to_micros(T0), to_micros(end), MINUTE):
            if row := simulated_minute(those, minute):
                table[to_datetime(minute), *key] = row
    return table


def stay_of(row: Row) -> Row | None:
    """Return when an attempt waited and ran, or None if it never became ready or is an end by a
    person."""
    by_hand = row["started_at"] is None and row["outcome"] in ("cancelled", "failed")
    if row["ready_at"] is None or (by_hand and row["outcome"] == "failed"):
        return None
    finished = to_micros(row["finished_at"])
    ready = min(to_micros(row["ready_at"]), finished)
    is_claimed = row["claimed_at"] is not None and not (
        by_hand and row["claimed_at"] < row["ready_at"]
    )
    started = None if row["started_at"] is None else to_micros(row["started_at"])
    return {
        "ready": ready,
        "left": max(ready, min(finished, to_micros(row["claimed_at"]))) if is_claimed else finished,
        "is_claimed": is_claimed,
        "start": finished if started is None else max(ready, started),
        "finish": finished,
        "run_us": 0 if started is None else finished - started,
        "weight": row["weight"],
    }


def simulated_minute(stays: list[Row], minute: int) -> Row | None:
    def waiting_at(second: int) -> list[Row]:
        return [stay for stay in stays if stay["ready"] // S <= second < stay["left"] // S]

    end = minute + MINUTE
    depths = [len(waiting_at(second)) for second in range(minute // S - 1, end // S)]
    arrived = [stay for stay in stays if minute <= stay["ready"] < end]
    claimed = [stay for stay in stays if stay["is_claimed"] and minute <= stay["left"] < end]
    before = [stay for stay in stays if stay["ready"] < minute]
    work = sum(max(0, stay["finish"] - max(stay["start"], minute)) for stay in before)
    if not (arrived or depths[0] or work):
        return None
    hour = minute // HOUR * HOUR
    touching = [
        s for s in stays if s["ready"] < hour + HOUR and max(s["left"], s["finish"]) >= hour
    ]
    at_end = waiting_at(end // S - 1)
    return {
        "weight": max(stay["weight"] for stay in touching),
        "arrived": len(arrived),
        "arrived_us": sum(stay["run_us"] for stay in arrived),
        "claimed": len(claimed),
        "strides": pytest.approx(sum(1 / stay["weight"] for stay in claimed), abs=1e-8),
        "depth_end": depths[-1],
        "depth_min": min(depths),
        "backlogged_us": sum(S for depth in depths[1:] if depth),
        "work_us": work,
        "oldest_ready_at": to_datetime(min(stay["ready"] for stay in at_end)) if at_end else None,
    }


def queue_of(seed: int) -> tuple[list[Row], list[Row]]:
    """Return some hours of attempts, and the tasks that still wait."""
    random = Random(seed)
    still = [
        waits(
            fairness_key=random.choice("abd"),
            weight=random.choice((1.0, 3.0)),
            ready_at=at(random.uniform(-3e3, 12e3)),
        )
        for _ in range(4)
    ]
    return history(random, 60), still


@pytest.mark.parametrize("seed", range(2))
def test_the_backlog_equals_a_count_at_every_second(spark: SparkSession, seed: int) -> None:
    attempts, still = queue_of(seed)
    assert built(spark, attempts, still) == simulated(attempts, still)
