"""The silver tables of tasks, service and waiting, in hand-made cases; test_backlog.py covers the
backlog, and test_build.py compares builds in steps with a whole build."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.models import OPEN_TASKS
from tests.pipeline.frames import (
    T0,
    at,
    attempt,
    attempts_frame,
    event,
    events_frame,
    records,
)
from tests.pipeline.model_frames import open_tasks, service, tasks

S = 1_000_000
MINUTE = 60 * S
Row = dict[str, Any]


# service ------------------------------------------------------------------------------------------


def served(spark: SparkSession, *rows: Row) -> list[tuple[Any, ...]]:
    """Return (minute, busy_us, started, done, failed, wasted_us, longest_run_us), ascending."""
    names = (
        "busy_us",
        "attempts_started",
        "attempts_done",
        "failed",
        "wasted_us",
        "longest_run_us",
    )
    found = records(service(attempts_frame(spark, rows)))
    assert all(row["window_s"] == 60 for row in found)
    return sorted(
        ((row["window_start"] - T0) // timedelta(minutes=1), *(row[name] for name in names))
        for row in found
    )


def test_a_run_over_three_windows_is_split_to_the_microsecond(spark: SparkSession) -> None:
    run = attempt(started_at=50.000001, finished_at=130.5)
    whole = 80_499_999
    assert served(spark, run) == [
        (0, 9_999_999, 1, 0, 0, 0, whole),
        (1, 60_000_000, 0, 0, 0, 0, whole),
        (2, 10_500_000, 0, 1, 0, 0, whole),
    ]


def test_a_run_over_midnight_is_counted_on_both_days(spark: SparkSession) -> None:
    run = attempt(started_at=14 * 3600 - 1, finished_at=14 * 3600 + 2, outcome="failed")
    assert served(spark, run) == [
        (839, 1 * S, 1, 0, 0, 1 * S, 3 * S),
        (840, 2 * S, 0, 0, 1, 2 * S, 3 * S),
    ]


def test_a_run_that_ends_with_its_minute_has_no_time_in_the_next(spark: SparkSession) -> None:
    run = attempt(started_at=0, finished_at=60)
    assert served(spark, run) == [(0, MINUTE, 1, 0, 0, 0, MINUTE), (1, 0, 0, 1, 0, 0, 0)]


def test_a_run_of_no_length_counts_as_started_and_done(spark: SparkSession) -> None:
    assert served(spark, attempt(started_at=60, finished_at=60)) == [(1, 0, 1, 1, 0, 0, 0)]


def test_an_attempt_without_a_run_adds_nothing(spark: SparkSession) -> None:
    assert (
        served(
            spark,
            attempt(started_at=None, outcome="lost"),
            attempt(started_at=None, outcome="cancelled"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("outcome", "done", "failed", "wasted_us"),
    [
        ("done", 1, 0, 0),
        ("snoozed", 0, 0, 0),
        ("cancelled", 0, 0, 2 * S),
        ("failed", 0, 1, 2 * S),
        ("retried", 0, 1, 2 * S),
        ("timed_out", 0, 1, 2 * S),
        ("lost", 0, 1, 2 * S),
    ],
)
def test_the_outcome_of_a_run_decides_its_wasted_time(
    spark: SparkSession, outcome: str, done: int, failed: int, wasted_us: int
) -> None:
    run = attempt(started_at=0, finished_at=2, outcome=outcome)
    assert served(spark, run) == [(0, 2 * S, 1, done, failed, wasted_us, 2 * S)]


def test_runs_of_one_key_and_name_are_in_one_row_and_others_are_not(spark: SparkSession) -> None:
    rows = [
        attempt(weight=1.0),
        attempt(weight=4.0),
        attempt(name="other"),
        attempt(fairness_key="b"),
        attempt(queue="r"),
    ]
    found = records(service(attempts_frame(spark, rows)))
    by_key = {
        (row["queue"], row["fairness_key"], row["name"]): (
            row["attempts_done"],
            row["weight"],
            row["weighted_us"],
        )
        for row in found
    }
    assert by_key == {
        ("q", "a", "work"): (2, 4.0, 1.25 * S),
        ("q", "a", "other"): (1, 1.0, S),
        ("q", "b", "work"): (1, 1.0, S),
        ("r", "a", "work"): (1, 1.0, S),
    }
    assert len(found) == 4


# tasks --------------------------------------------------------------------------------------------


def built_tasks(
    spark: SparkSession, attempts: Iterable[Row], events: Iterable[Row] = ()
) -> dict[str, Row]:
    """Return the rows of silver.tasks, by task."""
    found = records(tasks(attempts_frame(spark, attempts), events_frame(spark, events)))
    by_task = {row["task_id"]: row for row in found}
    assert len(by_task) == len(found)
    return by_task


def test_a_chain_of_retries_is_one_task(spark: SparkSession) -> None:
    chain = [
        attempt(
            task_id="t",
            attempt=1,
            version=2,
            ready_at=0,
            claimed_at=3,
            started_at=4,
            finished_at=9,
            outcome="retried",
        ),
        attempt(
            task_id="t",
            attempt=2,
            version=5,
            ready_at=20,
            claimed_at=21,
            started_at=None,
            finished_at=60,
            outcome="lost",
        ),
        attempt(
            task_id="t",
            attempt=3,
            version=7,
            ready_at=60,
            claimed_at=66,
            started_at=66,
            finished_at=86.5,
            outcome="done",
        ),
    ]
    (task,) = built_tasks(spark, reversed(chain), [event(task_id="t")]).values()
    assert task["first_ready_at"] == at(0) and task["first_claimed_at"] == at(3)
    assert task["first_started_at"] == at(4) and task["last_finished_at"] == at(86.5)
    assert (task["attempts"], task["retries"], task["state"]) == (3, 2, "DONE")
    assert (task["wait_us"], task["queue_us"], task["run_us"]) == (3 * S, 10 * S, 25_500_000)
    assert task["e2e_us"] == 86_500_000
    assert task["slowdown"] == pytest.approx(35.5 / 25.5)


def test_a_task_that_waits_for_a_retry_has_no_end(spark: SparkSession) -> None:
    (task,) = built_tasks(spark, [attempt(outcome="retried")]).values()
    assert (task["state"], task["e2e_us"], task["attempts"], task["retries"]) == (
        "WAITING",
        None,
        1,
        0,
    )


def test_a_task_in_error_ends_when_a_person_fails_it(spark: SparkSession) -> None:
    run = attempt(task_id="t", ready_at=0, claimed_at=10, finished_at=12, outcome="failed")
    given_up = attempt(
        task_id="t",
        version=3,
        ready_at=0,
        claimed_at=10,
        started_at=None,
        finished_at=99,
        outcome="failed",
        next_state="FAILED",
    )
    (task,) = built_tasks(spark, [given_up, run]).values()
    assert (task["state"], task["attempts"], task["retries"], task["e2e_us"]) == (
        "FAILED",
        1,
        0,
        99 * S,
    )
    assert (task["queue_us"], task["run_us"]) == (10 * S, 2 * S), (
        "values that the row of the person repeats are not counted twice"
    )


def test_a_task_cancelled_before_any_run_was_never_claimed(spark: SparkSession) -> None:
    cancelled = attempt(
        task_id="t", version=1, claimed_at=None, finished_at=30, outcome="cancelled"
    )
    (task,) = built_tasks(spark, [cancelled], [event(task_id="t", version=1)]).values()
    assert (task["state"], task["attempts"], task["retries"]) == ("CANCELLED", 0, 0)
    assert (task["wait_us"], task["queue_us"], task["run_us"], task["e2e_us"]) == (
        None,
        0,
        0,
        30 * S,
    )
    assert task["slowdown"] == 1.0


def test_a_cancelled_task_has_waited_until_its_claim(spark: SparkSession) -> None:
    cancelled = attempt(ready_at=3, claimed_at=8, started_at=None, outcome="cancelled")
    (task,) = built_tasks(spark, [cancelled]).values()
    assert (task["attempts"], task["queue_us"], task["run_us"]) == (0, 5 * S, 0)


def test_a_task_known_only_by_its_submit_waits_for_its_time_or_a_claim(
    spark: SparkSession,
) -> None:
    events = [
        event(task_id="now", at=5, weight=2.0, priority=1),
        event(task_id="later", at=5, run_at=6),
        event(task_id="resumed", kind="resumed"),
    ]
    found = built_tasks(spark, [], events)
    assert {name: row["state"] for name, row in found.items()} == {
        "now": "SUBMITTED",
        "later": "WAITING",
    }
    row = found["now"]
    assert (row["submitted_at"], row["weight"], row["priority"], row["ordering_key"]) == (
        at(5),
        2.0,
        1,
        None,
    )
    assert (row["attempts"], row["queue_us"], row["run_us"], row["slowdown"]) == (0, 0, 0, 1.0)
    assert row["first_ready_at"] == at(5) and found["later"]["first_ready_at"] == at(6)
    assert [
        row[n]
        for n in ("first_claimed_at", "first_started_at", "last_finished_at", "wait_us", "e2e_us")
    ] == [None] * 5


def test_the_same_submit_twice_is_one_task_and_tasks_of_two_stores_are_two(
    spark: SparkSession,
) -> None:
    assert len(built_tasks(spark, [], [event(task_id="t"), event(task_id="t")])) == 1
    rows = [attempt(task_id="t"), attempt(task_id="t", store_id="other")]
    assert tasks(attempts_frame(spark, rows), events_frame(spark, [])).count() == 2


def test_clocks_that_disagree_make_no_negative_time(spark: SparkSession) -> None:
    row = attempt(submitted_at=10, ready_at=10, claimed_at=9.5, started_at=9.4, finished_at=9.9)
    (task,) = built_tasks(spark, [row]).values()
    assert (task["wait_us"], task["queue_us"], task["run_us"], task["e2e_us"]) == (0, 0, 500_000, 0)


def test_the_slowdown_counts_short_runs_as_ten_seconds(spark: SparkSession) -> None:
    waited = attempt(task_id="short", ready_at=0, claimed_at=30, finished_at=31)
    long = attempt(task_id="long", ready_at=0, claimed_at=30, finished_at=50)
    found = built_tasks(spark, [waited, long])
    assert found["short"]["slowdown"] == pytest.approx(3.1) and found["long"][
        "slowdown"
    ] == pytest.approx(2.5)


# waiting ------------------------------------------------------------------------------------------


def still(
    spark: SparkSession, attempts: Iterable[Row], events: Iterable[Row]
) -> list[tuple[Any, ...]]:
    """Return (queue, fairness_key, weight, ready_at) of the waiting tasks, ascending by instant."""
    found = open_tasks(tasks(attempts_frame(spark, attempts), events_frame(spark, events)))
    assert found.columns == OPEN_TASKS.column_names
    found = found.select("queue", "fairness_key", "weight", "ready_at")
    return sorted((tuple(row.values()) for row in records(found)), key=lambda row: row[3])


def test_a_submitted_task_waits_from_its_time_until_its_first_attempt_is_read(
    spark: SparkSession,
) -> None:
    submitted = [
        event(task_id="seen", fairness_key="seen"),
        event(task_id="timed", at=5, run_at=65, weight=2.0),
        event(task_id="late", at=7, run_at=-10, fairness_key="b"),
        event(task_id="twice", at=8),
        event(task_id="twice", at=8),
        event(task_id="else", kind="resumed"),
    ]
    seen = [attempt(task_id="seen", outcome="retried")]
    expected = [("q", "b", 1.0, at(7)), ("q", "a", 1.0, at(8)), ("q", "a", 2.0, at(65))]
    assert still(spark, seen, submitted) == expected


def test_an_attempt_that_comes_late_still_ends_the_waiting(spark: SparkSession) -> None:
    late = attempt(task_id="a", finished_at=10, exported_at=90_000)
    assert len(still(spark, [], [event(task_id="a")])) == 1
    assert still(spark, [late], [event(task_id="a")]) == []


def test_a_task_of_another_store_keeps_waiting(spark: SparkSession) -> None:
    assert len(still(spark, [attempt(task_id="a", store_id="other")], [event(task_id="a")])) == 1
