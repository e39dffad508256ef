"""gold.failures in hand-made cases."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.frames import at, attempt, attempts_frame, records
from tests.pipeline.model_frames import failures

Row = dict[str, Any]


def failed(**fields: Any) -> Row:
    return attempt(
        **{"outcome": "retried", "error_fp": 7, "error_type": "ValueError", "error_text": "no"}
        | fields
    )


def found(spark: SparkSession, rows: Sequence[Row]) -> list[Row]:
    made = records(failures(attempts_frame(spark, rows)))
    return sorted(made, key=lambda row: (row["hour"], row["queue"], row["name"], row["error_fp"]))


def test_errors_of_one_fingerprint_in_an_hour_are_one_row(spark: SparkSession) -> None:
    rows = [
        failed(task_id="t", started_at=10, finished_at=12, error_text="second"),
        failed(task_id="t", attempt=2, started_at=20, finished_at=23, outcome="timed_out"),
        failed(task_id="u", started_at=5, finished_at=9, error_type="Early", error_text="first"),
        failed(error_fp=8, started_at=30, finished_at=40, outcome="failed"),
        attempt(task_id="t", attempt=3, started_at=50, finished_at=51),
        attempt(started_at=0, finished_at=11),
        attempt(task_id="t", store_id="other", attempt=2, started_at=1, outcome="snoozed"),
        failed(queue="other", finished_at=1),
        failed(finished_at=3600),
    ]
    other_queue, row, *others = found(spark, rows)
    assert (row["hour"], row["queue"], row["name"], row["error_fp"]) == (at(0), "q", "work", 7)
    assert (row["n"], row["tasks"], row["wasted_us"]) == (3, 2, 9_000_000)
    assert (row["error_type"], row["error_text"]) == ("Early", "first")
    assert (row["first_seen"], row["last_seen"], row["recovered_at"]) == (at(9), at(23), at(51))
    # Seven runs: three of t, one of u, and those of three more tasks, one of them in another store.
    assert row["retry_amplification"] == pytest.approx(7 / 5)
    assert row["storm"] is False
    assert [
        (other["hour"], other["queue"], other["error_fp"], other["n"])
        for other in (other_queue, *others)
    ] == [
        (at(0), "other", 7, 1),
        (at(0), "q", 8, 1),
        (at(3600), "q", 7, 1),
    ]


def test_the_example_of_an_error_is_the_earliest_by_time_and_then_by_task(
    spark: SparkSession,
) -> None:
    rows = [
        failed(task_id=task, finished_at=finished, error_text=task)
        for task, finished in (("a", 9), ("c", 5), ("b", 5), ("d", 7))
    ]
    assert [row["error_text"] for row in found(spark, rows)] == ["b"]


def test_a_failure_ends_when_a_run_of_the_same_name_succeeds_in_the_same_hour(
    spark: SparkSession,
) -> None:
    rows = [
        failed(finished_at=100),
        failed(finished_at=200, error_fp=8),
        failed(finished_at=300, error_fp=9),
        attempt(finished_at=100),  # at the same instant, not later
        attempt(finished_at=150),
        attempt(finished_at=250),
        attempt(finished_at=350, name="other"),
        attempt(finished_at=350, queue="other"),
        attempt(finished_at=350, outcome="snoozed"),
        attempt(finished_at=3601),
    ]
    assert [row["recovered_at"] for row in found(spark, rows)] == [at(150), at(250), None]


def test_a_failed_run_without_an_error_is_grouped_by_its_outcome(spark: SparkSession) -> None:
    lost = attempt(outcome="lost", started_at=None, finished_at=20)
    timed_out = attempt(outcome="timed_out", started_at=5, finished_at=10)
    by_outcome = {row["error_type"]: row for row in found(spark, [lost, timed_out])}
    assert {name: row["error_fp"] for name, row in by_outcome.items()} == {
        name: zlib.crc32(name.encode()) for name in ("lost", "timed_out")
    }
    assert by_outcome["lost"]["wasted_us"] == 0
    assert by_outcome["lost"]["error_text"] is None


def test_cancelled_and_snoozed_tasks_are_no_failures(spark: SparkSession) -> None:
    by_hand = attempt(outcome="failed", next_state="FAILED", started_at=None, error_text="by ann")
    assert found(spark, [by_hand, attempt(outcome="cancelled"), attempt(outcome="snoozed")]) == []


def test_a_storm_needs_a_hundred_failures_and_more_than_half_of_all_runs(
    spark: SparkSession,
) -> None:
    rows = [
        failed(name=name)
        for name, n in (("storm", 100), ("few", 99), ("half", 100))
        for _ in range(n)
    ]
    rows += [attempt(name=name) for name, n in (("storm", 99), ("half", 100)) for _ in range(n)]
    assert {row["name"]: row["storm"] for row in found(spark, rows)} == {
        "storm": True,
        "few": False,
        "half": False,
    }
