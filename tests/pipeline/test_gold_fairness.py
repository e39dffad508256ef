"""gold.fairness in hand-made cases, and for any shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fairlead.pipeline.models import TENANT_SHARE
from tests.fairness_gap import jain
from tests.pipeline.frames import at, frame, records
from tests.pipeline.model_frames import fairness
from tests.pipeline.silver_rows import SECOND

Row = dict[str, Any]


def share(minute: int, key: str, busy_s: float, entitled_s: float, **fields: Any) -> Row:
    """Return a row of gold.tenant_share of a key that had waiting tasks throughout the window; `judged`
    adds its part of the service."""
    return {
        "window_start": at(60 * minute),
        "window_s": 60,
        "queue": "q",
        "fairness_key": key,
        "busy_us": round(busy_s * SECOND),
        "entitled_us": round(entitled_s * SECOND),
        "weight": 1.0,
        "lag_us": 0,
        "throughout": True,
        "claimed": 0,
        "longest_run_us": 0,
        "starved": False,
    } | fields


def judged(spark: SparkSession, shares: Sequence[Row]) -> list[Row]:
    """Return the rows of gold.fairness, by window and queue."""
    for row in shares:
        rivals = [
            r
            for r in shares
            if all(r[name] == row[name] for name in ("window_start", "window_s", "queue"))
        ]
        row["share"] = row["busy_us"] / max(1, sum(rival["busy_us"] for rival in rivals))
    made = fairness(frame(spark, TENANT_SHARE, shares))
    return sorted(records(made), key=lambda row: (row["window_start"], row["queue"]))


def test_only_keys_that_waited_throughout_a_window_are_compared(spark: SparkSession) -> None:
    # a got all it was due, b a third: Jain (4/3)^2 / (2 (1 + 1/9)) = 0.8. c was idle for a while
    # and is not compared.
    (row,) = judged(
        spark,
        [
            share(0, "a", 30, 30, lag_us=-5, longest_run_us=5 * SECOND, claimed=6),
            share(0, "b", 10, 30, lag_us=70, longest_run_us=2 * SECOND, claimed=2),
            share(
                0, "c", 20, 10, lag_us=99, longest_run_us=9 * SECOND, claimed=50, throughout=False
            ),
        ],
    )
    assert row["n_keys"] == 2
    assert row["jain"] == pytest.approx(0.8)
    assert row["max_min_ratio"] == pytest.approx(3)
    assert (row["sfq_gap"], row["sfq_bound"], row["bound_ok"]) == (20 * SECOND, 7 * SECOND, False)
    assert (row["claim_gap"], row["claim_bound"]) == (4.0, 2.0)
    assert (row["max_lag_us"], row["max_lag_key"]) == (99, "c")
    # c has a third of the service and a seventh of the entitlement.
    assert (row["noisy_key"], row["noisy_score"]) == ("c", pytest.approx(7 / 3))


def test_gaps_and_bounds_are_relative_to_weights(spark: SparkSession) -> None:
    (row,) = judged(
        spark,
        [
            share(0, "a", 40, 40, weight=4.0, longest_run_us=8 * SECOND, claimed=8),
            share(0, "b", 10, 10, longest_run_us=4 * SECOND, claimed=2),
            share(0, "c", 3, 5, weight=0.5, longest_run_us=3 * SECOND, claimed=2),
        ],
    )
    assert (row["sfq_gap"], row["sfq_bound"], row["bound_ok"]) == (4 * SECOND, 10 * SECOND, True)
    assert (row["claim_gap"], row["claim_bound"]) == (2.0, 3.0)


def test_the_bound_allows_others_as_much_service_as_a_long_run_of_a_waiting_key(
    spark: SparkSession,
) -> None:
    # b's runs take ten minutes: while it waits for one, a may get ten minutes of short ones.
    (row,) = judged(
        spark,
        [
            share(30, "a", 60, 30, longest_run_us=SECOND),
            share(30, "b", 0, 30, longest_run_us=600 * SECOND),
        ],
    )
    assert (row["sfq_gap"], row["sfq_bound"], row["bound_ok"]) == (60 * SECOND, 601 * SECOND, True)
    assert row["max_min_ratio"] is None


def test_a_key_with_little_of_the_service_or_no_entitlement_is_not_noisy(
    spark: SparkSession,
) -> None:
    shares = [share(0, "a", 91, 91), share(0, "b", 9, 1), share(0, "c", 20, 0)]
    (row,) = judged(spark, shares)
    assert (row["noisy_key"], row["noisy_score"]) == ("a", pytest.approx(91 / 120 * 92 / 91))
    (row,) = judged(spark, [share(0, "c", 20, 0)])
    assert (row["noisy_key"], row["noisy_score"]) == (None, None)


def test_one_key_alone_is_neither_fair_nor_unfair(spark: SparkSession) -> None:
    (row,) = judged(spark, [share(0, "a", 60, 60), share(0, "b", 0, 0, throughout=False)])
    assert row["n_keys"] == 1
    undecided = (
        "jain",
        "max_min_ratio",
        "sfq_gap",
        "sfq_bound",
        "bound_ok",
        "claim_gap",
        "claim_bound",
    )
    assert [row[name] for name in undecided] == [None] * len(undecided)


def test_starved_keys_are_counted_in_each_window(spark: SparkSession) -> None:
    shares = [share(0, key, 1, 1, starved=key != "a") for key in "abc"]
    shares += [row | {"window_s": 3600, "starved": True} for row in shares]
    found = sorted((row["window_s"], row["starved_keys"]) for row in judged(spark, shares))
    assert found == [(60, 2), (3600, 3)]


loads = st.tuples(st.integers(0, 10**10), st.integers(0, 10**10))
"""busy_us, entitled_us"""


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(loads, min_size=1, max_size=8), min_size=20, max_size=40))
def test_jains_index_lies_between_one_nth_and_one(
    spark: SparkSession, queues: list[list[tuple[int, int]]]
) -> None:
    shares = [
        share(0, str(key), 0, 0, queue=f"{number:03}", busy_us=busy_us, entitled_us=entitled_us)
        for number, keys in enumerate(queues)
        for key, (busy_us, entitled_us) in enumerate(keys)
    ]
    for row, keys in zip(judged(spark, shares), queues, strict=True):
        got = [busy_us / entitled_us for busy_us, entitled_us in keys if entitled_us]
        assert row["n_keys"] == len(keys)
        if len(got) < 2:
            assert row["jain"] is None
        else:
            assert 1 / len(got) - 1e-9 <= row["jain"] <= 1
            assert row["jain"] == pytest.approx(jain(got))
