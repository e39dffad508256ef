"""gold.fairness, worked by hand, against plain Python, and what holds for any shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fairlead.pipeline.gold.fairness import FAIRNESS, fairness
from fairlead.pipeline.gold.tenant_share import TENANT_SHARE
from fairlead.pipeline.silver.backlog import BACKLOG
from fairlead.pipeline.silver.service import SERVICE
from fairlead.simulate.fairness import jain
from tests.pipeline.frames import at, frame, records
from tests.pipeline.silver_rows import IDLE, SECOND, served, waited

Row = dict[str, Any]


def share(minute: int, key: str, busy_s: float, entitled_s: float, **fields: Any) -> Row:
    """A row of gold.tenant_share; what part of the service it is, is filled in by `judged`."""
    return {
        "window_start": at(60 * minute),
        "window_s": 60,
        "queue": "q",
        "fairness_key": key,
        "busy_us": round(busy_s * SECOND),
        "entitled_us": round(entitled_s * SECOND),
        "weight": 1.0,
        "lag_us": 0,
    } | fields


def judged(
    spark: SparkSession,
    shares: Sequence[Row],
    service: Sequence[Row] = (),
    backlog: Sequence[Row] = (),
    pickups: Mapping[str, int] | None = None,
    window_s: int = 60,
) -> list[Row]:
    """By window and queue."""
    for row in shares:
        rivals = [r for r in shares if all(r[name] == row[name] for name in ("window_start", "window_s", "queue"))]
        row["share"] = row["busy_us"] / max(1, sum(rival["busy_us"] for rival in rivals))
    medians = spark.createDataFrame(list((pickups or {}).items()), "queue string, pickup_p50_us bigint")
    frames = (frame(spark, TENANT_SHARE, shares), frame(spark, SERVICE, service), frame(spark, BACKLOG, backlog))
    made = fairness(*frames, medians, window_s)
    return sorted(records(made), key=lambda row: (row["window_start"], row["queue"]))


def test_the_table_has_the_columns_it_documents(spark: SparkSession) -> None:
    medians = spark.createDataFrame([], "queue string, pickup_p50_us bigint")
    made = fairness(*(frame(spark, table, []) for table in (TENANT_SHARE, SERVICE, BACKLOG)), medians, 60)
    assert [(f.name, f.dataType) for f in made.schema] == [(f.name, f.dataType) for f in FAIRNESS.spark()]


def test_keys_that_waited_all_through_are_compared(spark: SparkSession) -> None:
    # a got all it was due, b a third: Jain (4/3)^2 / (2 (1 + 1/9)) = 0.8. c was idle for a while and is not compared.
    (row,) = judged(
        spark,
        [
            share(0, "a", 30, 30, lag_us=-5),
            share(0, "b", 10, 30, lag_us=70),
            share(0, "c", 20, 10, lag_us=99),
        ],
        [served(0, "a", 30, longest_run_us=5 * SECOND), served(0, "b", 10, longest_run_us=2 * SECOND)],
        [waited(0, "a", grabbed=6), waited(0, "b", grabbed=2), waited(0, "c", grabbed=50, **IDLE)],
    )
    assert row["n_keys"] == 2
    assert row["jain"] == pytest.approx(0.8)
    assert row["max_min_ratio"] == pytest.approx(3)
    assert (row["sfq_gap"], row["sfq_bound"], row["bound_ok"]) == (20 * SECOND, 7 * SECOND, False)
    assert (row["grab_gap"], row["grab_bound"]) == (4.0, 2.0)
    assert (row["max_lag_us"], row["max_lag_key"]) == (99, "c")
    # c has a third of the service and a seventh of the entitlement.
    assert (row["noisy_key"], row["noisy_score"]) == ("c", pytest.approx(7 / 3))


def test_gaps_and_bounds_are_by_weight(spark: SparkSession) -> None:
    (row,) = judged(
        spark,
        [share(0, "a", 40, 40, weight=4.0), share(0, "b", 10, 10), share(0, "c", 3, 5, weight=0.5)],
        [
            served(0, "a", 40, longest_run_us=8 * SECOND),
            served(0, "b", 10, longest_run_us=4 * SECOND),
            served(0, "c", 3, longest_run_us=3 * SECOND),
        ],
        [waited(0, "a", grabbed=8), waited(0, "b", grabbed=2), waited(0, "c", grabbed=2)],
    )
    assert (row["sfq_gap"], row["sfq_bound"], row["bound_ok"]) == (4 * SECOND, 10 * SECOND, True)
    assert (row["grab_gap"], row["grab_bound"]) == (2.0, 3.0)


def test_the_bound_knows_the_longest_run_of_a_key_that_was_not_served_in_the_window(spark: SparkSession) -> None:
    # b's runs take ten minutes: while it waits for one, a may get ten minutes of short ones.
    (row,) = judged(
        spark,
        [share(30, "a", 60, 30), share(30, "b", 0, 30)],
        [served(5, "b", 60, longest_run_us=600 * SECOND), served(30, "a", 60, longest_run_us=SECOND)],
        [waited(30, "a"), waited(30, "b")],
    )
    assert (row["sfq_gap"], row["sfq_bound"], row["bound_ok"]) == (60 * SECOND, 601 * SECOND, True)
    assert row["max_min_ratio"] is None


def test_one_key_alone_is_neither_fair_nor_unfair(spark: SparkSession) -> None:
    (row,) = judged(spark, [share(0, "a", 60, 60), share(0, "b", 0, 0)], [], [waited(0, "a"), waited(0, "b", **IDLE)])
    assert row["n_keys"] == 1
    undecided = ("jain", "max_min_ratio", "sfq_gap", "sfq_bound", "bound_ok", "grab_gap", "grab_bound")
    assert [row[name] for name in undecided] == [None] * len(undecided)


def test_a_key_waited_all_through_an_hour_only_if_it_did_so_in_each_of_its_minutes(spark: SparkSession) -> None:
    hour = {"window_s": 3600}
    (row,) = judged(
        spark,
        [share(0, key, 60, 60, **hour) for key in "abcd"],
        [],
        [waited(minute, "a") for minute in range(60)]
        # On the grid of seconds the least depth can be 0 although there was always something.
        + [waited(minute, "b", depth_min=0) for minute in range(60)]
        + [waited(minute, "c") for minute in range(59)]
        + [
            waited(minute, "d", **({"depth_min": 0, "backlogged_us": 59 * SECOND} if minute == 7 else {}))
            for minute in range(60)
        ],
        window_s=3600,
    )
    assert row["n_keys"] == 2


def test_keys_starve_that_wait_for_a_minute_and_for_ten_times_the_median_pickup(spark: SparkSession) -> None:
    idle = {"depth_min": 0, "backlogged_us": 30 * SECOND}
    grabs = {
        "starved": {0: 0, 1: 0, 2: 0, 3: 1},
        "served": {0: 0, 1: 0, 2: 1, 3: 0},
        "idle between": {0: 0, 1: 0, 2: None, 3: 0},
        "absent between": {0: 0, 1: 0, 3: 0},
    }
    backlog = [
        waited(minute, key, queue=queue, **(idle if grabbed is None else {"grabbed": grabbed}))
        for queue in ("slow", "quick")
        for key, minutes in grabs.items()
        for minute, grabbed in minutes.items()
    ]
    shares = [share(minute, "starved", 1, 1, queue=queue) for queue in ("slow", "quick") for minute in range(4)]
    shares += [row | {"fairness_key": key} for row in shares for key in grabs if key != "starved"]
    rows = judged(spark, shares, [], backlog, {"slow": 18 * SECOND, "other": 1})
    found = {queue: [row["starved_keys"] for row in rows if row["queue"] == queue] for queue in ("slow", "quick")}
    # 10 x 18 s are three minutes; a queue without a median is held to one.
    assert found == {"slow": [0, 0, 1, 0], "quick": [4, 4, 1, 3]}
    hours = [row | {"window_s": 3600, "window_start": at(0)} for row in shares[::4] if row["queue"] == "slow"]
    keys = {row["fairness_key"]: row for row in shares if row["queue"] == "slow"}
    hours = [row | {"window_s": 3600, "window_start": at(0)} for row in keys.values()]
    (hour,) = judged(spark, hours, [], backlog, {"slow": 18 * SECOND}, 3600)
    assert hour["starved_keys"] == 1


loads = st.tuples(st.integers(0, 10**10), st.integers(0, 10**10))
"""busy_us, entitled_us"""


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(loads, min_size=1, max_size=8), min_size=20, max_size=40))
def test_jains_index_lies_between_one_nth_and_one(spark: SparkSession, queues: list[list[tuple[int, int]]]) -> None:
    shares = [
        share(0, str(key), 0, 0, queue=f"{number:03}", busy_us=busy_us, entitled_us=entitled_us)
        for number, keys in enumerate(queues)
        for key, (busy_us, entitled_us) in enumerate(keys)
    ]
    backlog = [waited(0, row["fairness_key"], queue=row["queue"]) for row in shares]
    for row, keys in zip(judged(spark, shares, [], backlog), queues, strict=True):
        got = [busy_us / entitled_us for busy_us, entitled_us in keys if entitled_us]
        assert row["n_keys"] == len(keys)
        if len(got) < 2:
            assert row["jain"] is None
        else:
            assert 1 / len(got) - 1e-9 <= row["jain"] <= 1
            assert row["jain"] == pytest.approx(jain(got))


def test_it_agrees_with_plain_python_on_random_queues(spark: SparkSession) -> None:
    random = Random(3)
    shares, service, backlog = [], [], []
    for queue in map(str, range(60)):
        for key in "abcdef"[: random.randint(1, 6)]:
            weight = random.choice((0.5, 1.0, 2.0))
            shares.append(
                share(
                    0,
                    key,
                    random.randrange(60),
                    random.randrange(60),
                    queue=queue,
                    weight=weight,
                    lag_us=random.randrange(99),
                )
            )
            for minute in (0, 3):
                service.append(served(minute, key, random.randrange(60), queue=queue))
            backlog.append(
                waited(
                    0,
                    key,
                    queue=queue,
                    grabbed=random.randrange(9),
                    depth_min=random.choice((0, 1, 1)),
                    backlogged_us=0,
                )
            )
    found = judged(spark, shares, service, backlog)
    assert len(found) == 60
    for row in found:
        keys = {s["fairness_key"]: s for s in shares if s["queue"] == row["queue"]}
        queued = {b["fairness_key"]: b for b in backlog if b["queue"] == row["queue"]}
        there = [key for key in keys if queued[key]["depth_min"]]
        weight = {key: keys[key]["weight"] for key in keys}
        longest = {
            key: max(s["longest_run_us"] for s in service if s["queue"] == row["queue"] and s["fairness_key"] == key)
            for key in keys
        }
        busy = {key: keys[key]["busy_us"] / weight[key] for key in there}
        grabs = {key: queued[key]["grabbed"] / weight[key] for key in there}
        assert row["n_keys"] == len(there)
        if len(there) > 1:
            pairs = list(combinations(there, 2))
            bound = max(longest[f] / weight[f] + longest[m] / weight[m] for f, m in pairs)
            assert row["sfq_gap"] == pytest.approx(max(busy.values()) - min(busy.values()))
            assert row["sfq_bound"] == pytest.approx(bound)
            assert row["bound_ok"] == (row["sfq_gap"] <= row["sfq_bound"])
            assert row["grab_gap"] == pytest.approx(max(grabs.values()) - min(grabs.values()))
            assert row["grab_bound"] == pytest.approx(max(1 / weight[f] + 1 / weight[m] for f, m in pairs))
        assert row["max_lag_us"] == max(keys[key]["lag_us"] for key in keys)
        assert keys[row["max_lag_key"]]["lag_us"] == row["max_lag_us"]
        entitled = sum(keys[key]["entitled_us"] for key in keys)
        scores = [
            keys[key]["share"] * entitled / keys[key]["entitled_us"]
            for key in keys
            if keys[key]["share"] >= 0.1 and keys[key]["entitled_us"]
        ]
        assert row["noisy_score"] == (pytest.approx(max(scores)) if scores else None)
