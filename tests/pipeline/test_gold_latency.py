"""gold.latency_hist and gold.latency in hand-made cases, and for any runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipeline.frames import at, attempt, attempts_frame, records
from tests.pipeline.model_frames import latency, latency_hist

Row = dict[str, Any]
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9}


def counted(spark: SparkSession, *rows: Row) -> dict[str, list[tuple[int, int, int]]]:
    """Return (bucket, n, max_us) in ascending order, by measure."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for row in records(latency_hist(attempts_frame(spark, rows))):
        assert row["fairness_key"] == "*"
        group = found.setdefault(row["measure"], [])
        group.append((row["bucket"], row["n"], row["max_us"]))
    return {group: sorted(buckets) for group, buckets in found.items()}


def latencies(spark: SparkSession, rows: Sequence[Row], *windows: int, least: int = 1) -> list[Row]:
    """Return the rows of gold.latency, of all keys together and of each."""
    made = records(latency(attempts_frame(spark, rows), least))
    return [row for row in made if row["window_s"] in windows]


def test_each_measure_of_a_run_begins_at_its_own_instant(spark: SparkSession) -> None:
    times = {
        "submitted_at": 0,
        "run_at": 100,
        "ready_at": 101,
        "claimed_at": 102,
        "started_at": 105,
        "finished_at": 112,
    }
    retried = attempt(**times, outcome="retried")
    done = attempt(**times, attempt=2)
    seconds = {
        measure: [max_us / 1e6 for _, _, max_us in buckets]
        for measure, buckets in counted(spark, retried, done).items()
    }
    assert seconds == {"pickup": [4.0], "run": [7.0], "e2e": [112.0], "retry_delay": [5.0]}


def test_an_end_without_a_run_has_neither_pickup_nor_run(spark: SparkSession) -> None:
    lost = attempt(started_at=None, outcome="lost")
    cancelled = attempt(started_at=None, claimed_at=None, ready_at=None, outcome="cancelled")
    assert counted(spark, lost, cancelled) == {}


def test_each_bucket_ends_two_percent_above_the_previous_one(spark: SparkSession) -> None:
    # Clocks that disagree make a wait of 0; 0 and 1 us are both in bucket 0. 1.02^35 = 1.9999 < 2
    # us; 1.02^698 = 1.007 s.
    waits = (-3, 0, 0.000001, 0.000002, 1, 1)
    rows = [
        attempt(ready_at=10, claimed_at=10, started_at=10 + wait, finished_at=20) for wait in waits
    ]
    assert counted(spark, *rows)["pickup"] == [(0, 3, 1), (36, 1, 2), (698, 2, 1_000_000)]
    assert math.ceil(math.log(1_000_000) / math.log(1.02)) == 698


def test_all_keys_are_counted_together_by_name_and_hour(spark: SparkSession) -> None:
    rows = [attempt(fairness_key=key) for key in "aabc*"] + [
        attempt(name="other"),
        attempt(submitted_at=3600),
    ]
    found = [
        row for row in records(latency_hist(attempts_frame(spark, rows))) if row["measure"] == "run"
    ]
    assert sorted((row["hour"], row["name"], row["fairness_key"], row["n"]) for row in found) == [
        (at(0), "other", "*", 1),
        (at(0), "work", "*", 5),
        (at(3600), "work", "*", 1),
    ]


def test_a_key_named_star_makes_no_second_row_for_all_keys(spark: SparkSession) -> None:
    rows = [attempt(fairness_key="*"), attempt(fairness_key="a")]
    found = latencies(spark, rows, 86_400)
    assert sorted((r["fairness_key"], r["n"]) for r in found if r["measure"] == "run") == [
        ("*", 2),
        ("a", 1),
    ]


def test_a_key_with_few_attempts_in_an_hour_has_a_row_of_the_day_only(
    spark: SparkSession,
) -> None:
    seconds = {"many": (0, 0, 0, 3600), "few": (0, 0, 3600)}
    rows = [
        attempt(fairness_key=key, submitted_at=second)
        for key, found in seconds.items()
        for second in found
    ]
    made = latencies(spark, rows, 3600, 86_400, least=3)
    assert {
        (row["fairness_key"], row["window_start"], row["window_s"]): row["n"]
        for row in made
        if row["measure"] == "run"
    } == {
        ("many", at(0), 3600): 3,
        ("*", at(0), 3600): 5,
        ("*", at(3600), 3600): 2,
        ("many", at(0).replace(hour=0), 86_400): 4,
        ("few", at(0).replace(hour=0), 86_400): 3,
        ("*", at(0).replace(hour=0), 86_400): 7,
    }


def test_a_percentile_is_the_value_of_its_rank(spark: SparkSession) -> None:
    # There are 1,000 runs of 1 ms to 1 s: the 500th, 900th, 990th and 999th are the percentiles.
    rows = [attempt(started_at=10, finished_at=10 + n / 1000) for n in range(1, 1001)]
    made = latencies(spark, rows, 3600)
    (row,) = (row for row in made if row["measure"] == "run" and row["fairness_key"] == "*")
    assert (row["n"], row["max_us"], row["window_s"], row["error_bound"]) == (
        1000,
        1_000_000,
        3600,
        0.01,
    )
    for name, rank in {"p50": 500, "p90": 900, "p99": 990, "p999": 999}.items():
        assert row[name] == pytest.approx(rank * 1000, rel=0.01), name


def test_a_single_value_is_its_own_percentile_within_the_error(spark: SparkSession) -> None:
    rows = [
        attempt(name=str(us), started_at=10, finished_at=10 + us / 1e6)
        for us in (0, 1, 2, 3, 57, 10**6, 5 * 10**9)
    ]
    made = [row for row in latencies(spark, rows, 86_400) if row["measure"] == "run"]
    assert len(made) == 2 * len(rows)
    for row in made:
        assert row["p50"] == row["p999"] == pytest.approx(int(row["name"]), rel=0.01)
        assert row["p999"] <= row["max_us"] == int(row["name"])
        assert row["error_bound"] or row["p50"] == int(row["name"])


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 2)), min_size=1, max_size=300))
def test_counts_of_parts_add_up_to_counts_of_all(
    spark: SparkSession, runs: list[tuple[int, int]]
) -> None:
    rows = [
        attempt(started_at=0, finished_at=us / 1e6, fairness_key="ab"[us % 2]) for us, _ in runs
    ]
    parts = [
        [row for row, (_, part) in zip(rows, runs, strict=True) if part == number]
        for number in range(3)
    ]
    group = ["hour", "queue", "name", "fairness_key", "measure", "bucket"]

    def merged(frame: DataFrame) -> set[tuple[Any, ...]]:
        sums = frame.groupBy(*group).agg(F.sum("n").alias("n"), F.max("max_us").alias("max_us"))
        return {tuple(row.values()) for row in records(sums)}

    whole = latency_hist(attempts_frame(spark, rows))
    pieces = [latency_hist(attempts_frame(spark, part)) for part in parts]
    assert merged(pieces[0].unionByName(pieces[1]).unionByName(pieces[2])) == merged(whole)
    for row in records(whole):
        upper = 1.02 ** row["bucket"]
        assert row["bucket"] == 0 or upper / 1.02 * (1 - 1e-9) < row["max_us"] <= upper * (1 + 1e-9)


def test_ranks_of_a_key_with_very_many_attempts_are_within_their_bound(
    spark: SparkSession,
) -> None:
    count = 300_000
    one = attempts_frame(spark, [attempt()])
    finished = F.expr("timestamp_micros(unix_micros(started_at) + id)")
    rows = spark.range(1, count + 1).crossJoin(one).withColumn("finished_at", finished).drop("id")
    of_day = "measure = 'run' AND window_s = 86400 AND fairness_key <> '*'"
    [made] = records(latency(rows).where(of_day))
    for name, percent in PERCENTILES.items():
        assert made[name] == pytest.approx(count * percent / 100, abs=count / 10_000), name
