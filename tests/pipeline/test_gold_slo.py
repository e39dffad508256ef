"""gold.slo_counts and gold.slo in hand-made cases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.models import SLO_COUNTS
from tests.pipeline.frames import at, attempt, attempts_frame, frame, records
from tests.pipeline.model_frames import Objective, slo, slo_counts

Row = dict[str, Any]
SECOND = 1_000_000
PICKUP = Objective("pickup", "q", "*", "pickup", 2 * SECOND, 0.9)


def counted(
    spark: SparkSession, rows: Sequence[Row], *objectives: Objective
) -> dict[tuple[str, float], tuple[int, int]]:
    """Return (good, bad) by objective and start of the window (minutes after T0)."""
    made = records(slo_counts(attempts_frame(spark, rows), objectives))
    return {
        (row["slo_id"], (row["window_start"] - at(0)) / timedelta(minutes=1)): (
            row["good"],
            row["bad"],
        )
        for row in made
    }


def burnt(
    spark: SparkSession, counts: Sequence[tuple[int, int, int]], objective: float
) -> list[Row]:
    """Return the burn rates of (window, good, bad); window n begins 5n minutes after T0."""
    rows = [
        {
            "window_start": at(300 * window),
            "slo_id": "s",
            "good": good,
            "bad": bad,
        }
        for window, good, bad in counts
    ]
    promise = PICKUP._replace(slo_id="s", objective=objective)
    made = slo(frame(spark, SLO_COUNTS, rows), [promise])
    return sorted(records(made), key=lambda row: row["window_start"])


def test_a_run_is_good_when_it_is_no_slower_than_promised_and_did_not_fail(
    spark: SparkSession,
) -> None:
    rows = [
        attempt(started_at=2),
        attempt(started_at=2.000001),
        attempt(started_at=1, outcome="retried"),
        attempt(started_at=1, outcome="snoozed"),
        attempt(started_at=None, outcome="lost"),
        attempt(started_at=None, outcome="cancelled"),
        attempt(started_at=None, outcome="failed", next_state="FAILED"),  # ended by a person
        attempt(queue="other"),
    ]
    assert counted(spark, rows, PICKUP) == {("pickup", 0): (2, 3)}


def test_windows_of_five_minutes_count_the_runs_that_finished_in_them(spark: SparkSession) -> None:
    rows = [attempt(finished_at=seconds) for seconds in (1, 299.999999, 300, 3000)]
    run = PICKUP._replace(slo_id="run", measure="run", threshold_us=1000 * SECOND)
    assert counted(spark, rows, run) == {
        ("run", 0): (2, 0),
        ("run", 5): (1, 0),
        ("run", 50): (0, 1),
    }


def test_an_objective_from_submit_to_end_counts_only_last_runs(
    spark: SparkSession,
) -> None:
    rows = [
        attempt(finished_at=5),
        attempt(finished_at=50),
        attempt(finished_at=5, outcome="retried"),
        attempt(finished_at=5, outcome="failed"),
        attempt(finished_at=5, outcome="cancelled"),
        attempt(started_at=None, finished_at=5, outcome="lost", next_state="ERROR"),
        attempt(started_at=None, finished_at=5, outcome="lost"),
    ]
    e2e = PICKUP._replace(measure="e2e", threshold_us=10 * SECOND)
    assert counted(spark, rows, e2e) == {("pickup", 0): (1, 3)}


def test_an_objective_applies_to_one_task_name_or_to_all(spark: SparkSession) -> None:
    rows = [attempt(name="mail"), attempt(name="report"), attempt(name="report", queue="other")]
    only = PICKUP._replace(slo_id="reports", name="report")
    assert counted(spark, rows, PICKUP, only) == {("pickup", 0): (2, 0), ("reports", 0): (1, 0)}


def test_without_objectives_the_tables_have_no_rows(spark: SparkSession) -> None:
    assert counted(spark, [attempt()]) == {}


def test_the_burn_rate_is_the_fraction_of_bad_runs_divided_by_the_allowed_fraction(
    spark: SparkSession,
) -> None:
    # One run in ten may be bad. In this window 5 of 10 are bad (5 x), over half an hour 5 of 100 (0.5 x),
    # and none of the 900 before.
    (_, _, row) = burnt(spark, [(-6, 900, 0), (-5, 90, 0), (0, 5, 5)], 0.9)
    assert row["burn_5m"] == pytest.approx(5)
    assert row["burn_30m"] == pytest.approx(0.5)
    assert row["burn_1h"] == row["burn_6h"] == row["burn_3d"] == pytest.approx(0.05)
    assert row["budget_left"] == pytest.approx(0.95)
    assert row["objective"] == 0.9


def test_a_fast_burn_pages_and_stops_paging_when_it_ends(spark: SparkSession) -> None:
    # One run in a hundred may be bad; after a good day, an hour with 20 % bad runs burns 20 x.
    day = [(window, 100, 0) for window in range(-288, 0)]
    hour = [(window, 80, 20) for window in range(12)]
    after = [(window, 100, 0) for window in range(12, 14)]
    states = [row["state"] for row in burnt(spark, [*day, *hour, *after], 0.99)]
    assert set(states[:288]) == {"ok"}
    # The rate over an hour reaches 14.4 x in its ninth window; the rate over six hours does not reach 6 x
    # (21.6 windows with 20 %).
    assert states[288:296] == ["ok"] * 8
    assert states[296:300] == ["page"] * 4
    # The last hour still exceeds the rate, but the last five minutes do not.
    assert "page" not in states[300:]


def test_a_slow_burn_pages_over_six_hours_and_tickets_over_three_days(spark: SparkSession) -> None:
    counts = [(window, 93, 7) for window in range(72)]
    rows = burnt(spark, [(-288 * 2, 10_000, 0), *counts], 0.99)
    assert [row["state"] for row in rows[1:]] == ["page"] * 72
    slow = burnt(spark, [(-288 * 2, 1000, 0), *((window, 97, 3) for window in range(72))], 0.99)
    states = [row["state"] for row in slow[1:]]
    # 3 of 100 runs are bad in each window, after 1,000 good runs: 1 in 100 is exceeded once 3 n > (1000 +
    # 100 n) / 100, at n = 6.
    assert states == ["ok"] * 5 + ["ticket"] * 67
