"""gold.tenant_share in hand-made cases, and for any load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from fractions import Fraction
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fairlead.pipeline.models import BACKLOG, LATENCY, SERVICE
from tests.pipeline.frames import T0, at, frame, records
from tests.pipeline.model_frames import tenant_share
from tests.pipeline.silver_rows import IDLE, SECOND, served, waited

Row = dict[str, Any]


def shares(
    spark: SparkSession,
    service: Sequence[Row],
    backlog: Sequence[Row],
    window_s: int = 60,
    pickups: Mapping[str, int] | None = None,
) -> list[Row]:
    """Return the shares of one window size (seconds), by window, queue and key.

    pickups: median pickup time of T0's day by queue, in microseconds.
    """
    medians = [
        {
            "window_start": T0.replace(hour=0),
            "window_s": 86_400,
            "queue": queue,
            "fairness_key": "*",
            "measure": "pickup",
            "p50": pickup_us,
        }
        for queue, pickup_us in (pickups or {}).items()
    ]
    made = tenant_share(
        frame(spark, SERVICE, service),
        frame(spark, BACKLOG, backlog),
        frame(spark, LATENCY, medians),
    )
    rows = [row for row in records(made) if row["window_s"] == window_s]
    return sorted(rows, key=lambda row: (row["window_start"], row["queue"], row["fairness_key"]))


def column(rows: Sequence[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_the_unused_share_of_a_key_is_divided_by_weight_among_keys_that_want_more(
    spark: SparkSession,
) -> None:
    # Key a wanted 10 of 100 s and gets 10. The other 90 s are divided between b and c by weight, one to two:
    # 30 and 60.
    service = [served(0, "a", 10), served(0, "b", 60), served(0, "c", 30, weight=2.0)]
    backlog = [
        waited(0, "a", arrived_us=10 * SECOND),
        waited(0, "b", arrived_us=100 * SECOND),
        waited(0, "c", arrived_us=100 * SECOND, weight=2.0),
    ]
    rows = shares(spark, service, backlog)
    assert column(rows, "entitled_us") == [10 * SECOND, 30 * SECOND, 60 * SECOND]
    assert column(rows, "deficit_us") == [0, -30 * SECOND, 30 * SECOND]
    assert column(rows, "share") == pytest.approx([0.1, 0.6, 0.3])
    assert column(rows, "weight") == [1.0, 1.0, 2.0]


def test_queues_and_windows_do_not_share_workers(spark: SparkSession) -> None:
    service = [served(0, "a", 8), served(1, "a", 4), served(0, "a", 2, queue="other")]
    wants = {"arrived_us": 100 * SECOND}
    backlog = [
        waited(minute, key, queue=queue, **wants)
        for minute, queue in ((0, "q"), (1, "q"), (0, "other"))
        for key in ("a", "b")
    ]
    rows = shares(spark, service, backlog)
    assert column(rows, "entitled_us") == [
        SECOND,
        SECOND,
        4 * SECOND,
        4 * SECOND,
        2 * SECOND,
        2 * SECOND,
    ]
    assert column(rows, "share") == [1.0, 0.0] * 3


def test_unfinished_work_counts_once_as_demand_at_the_start_of_a_window(
    spark: SparkSession,
) -> None:
    backlog = [
        waited(0, "a", work_us=50 * SECOND, arrived_us=7 * SECOND),
        waited(1, "a", work_us=57 * SECOND, arrived_us=3 * SECOND),
        waited(1, "late", work_us=9 * SECOND, arrived_us=1 * SECOND),
    ]
    assert column(shares(spark, [], backlog, 3600), "demand_us") == [60 * SECOND, 1 * SECOND]
    assert column(shares(spark, [], backlog, 60), "demand_us") == [
        57 * SECOND,
        60 * SECOND,
        10 * SECOND,
    ]


def test_a_window_without_runs_has_shares_of_zero(spark: SparkSession) -> None:
    rows = shares(spark, [], [waited(0, "a", arrived_us=5), waited(0, "b")])
    assert column(rows, "share") == [0.0, 0.0]
    assert column(rows, "entitled_us") == [0, 0]


def test_lag_adds_up_while_a_key_has_backlog_and_restarts_after_it_had_none(
    spark: SparkSession,
) -> None:
    # In every minute a and b are entitled to 5 s each, and b gets all 10: each minute a falls 5 s behind,
    # and b gets 5 s ahead.
    minutes = [0, 1, 2, 3, 4, 6, 7]
    idle_at = 3
    wants = {"arrived_us": 100 * SECOND}
    backlog = [
        waited(m, key, **wants, **(IDLE if m == idle_at else {}))
        for m in minutes
        for key in ("a", "b")
    ]
    rows = shares(spark, [served(m, "b", 10) for m in minutes], backlog)
    lags = {
        key: [row["lag_us"] // SECOND for row in rows if row["fairness_key"] == key]
        for key in ("a", "b")
    }
    assert lags == {"a": [5, 10, 15, 0, 5, 5, 10], "b": [-5, -10, -15, 0, -5, -5, -10]}


def test_lag_restarts_at_midnight(spark: SparkSession) -> None:
    last = int((T0.replace(hour=0) + timedelta(days=1) - T0).total_seconds()) // 60 - 1
    wants = {"arrived_us": 100 * SECOND}
    backlog = [
        waited(minute, key, **wants) for minute in range(last - 1, last + 2) for key in ("a", "b")
    ]
    rows = shares(spark, [served(minute, "b", 10) for minute in range(last - 1, last + 2)], backlog)
    assert [row["lag_us"] // SECOND for row in rows if row["fairness_key"] == "a"] == [5, 10, 5]
    assert rows[-1]["window_start"].astimezone(UTC).hour == 0


def test_the_backlog_of_a_key_is_a_fraction_of_the_whole_window(spark: SparkSession) -> None:
    rows = shares(spark, [], [waited(0, "a"), waited(1, "a", backlogged_us=30 * SECOND)], 3600)
    assert column(rows, "backlogged_fraction") == pytest.approx([90 / 3600])


def test_a_key_waited_throughout_an_hour_only_if_it_waited_throughout_each_minute(
    spark: SparkSession,
) -> None:
    backlog = (
        [waited(minute, "a") for minute in range(60)]
        # On the grid of seconds the least depth can be 0 although a task always waited.
        + [waited(minute, "b", depth_min=0) for minute in range(60)]
        + [waited(minute, "c") for minute in range(59)]
        + [
            waited(
                minute,
                "d",
                **({"depth_min": 0, "backlogged_us": 59 * SECOND} if minute == 7 else {}),
            )
            for minute in range(60)
        ]
    )
    assert column(shares(spark, [], backlog, 3600), "throughout") == [True, True, False, False]
    assert column(shares(spark, [], backlog, 86_400), "throughout") == [False] * 4
    minutes = [
        row["throughout"] for row in shares(spark, [], backlog) if row["fairness_key"] == "d"
    ]
    assert minutes == [minute != 7 for minute in range(60)]


def test_the_longest_run_is_the_longest_of_the_key_and_its_day(spark: SparkSession) -> None:
    tomorrow = 24 * 60
    service = [
        served(5, "a", 60, longest_run_us=600 * SECOND, name="slow"),
        served(5, "a", 1, name="quick"),
        served(90, "a", 2),
        served(90, "b", 3),
        served(tomorrow, "a", 4),
    ]
    rows = shares(spark, service, [], 3600)
    assert [row["longest_run_us"] // SECOND for row in rows] == [600, 600, 3, 4]


def test_worker_times_of_several_nodes_are_added(spark: SparkSession) -> None:
    backlog = [waited(minute, "a", claimed=minute) for minute in (1, 2, 61)]
    assert column(shares(spark, [], backlog, 3600), "claimed") == [3, 61]


def test_a_key_starves_if_it_waits_for_a_minute_and_for_ten_times_the_median_pickup(
    spark: SparkSession,
) -> None:
    idle = {"depth_min": 0, "backlogged_us": 30 * SECOND}
    claims = {
        "absent between": {0: 0, 1: 0, 3: 0},
        "idle between": {0: 0, 1: 0, 2: None, 3: 0},
        "served": {0: 0, 1: 0, 2: 1, 3: 0},
        "starved": {0: 0, 1: 0, 2: 0, 3: 1},
    }
    backlog = [
        waited(minute, key, queue=queue, **(idle if claimed is None else {"claimed": claimed}))
        for queue in ("slow", "quick")
        for key, minutes in claims.items()
        for minute, claimed in minutes.items()
    ]
    # Service of other tasks does not end the wait of an unclaimed task.
    service = [
        served(minute, "starved", 1, queue=queue)
        for queue in ("slow", "quick")
        for minute in range(4)
    ]

    def starving(queue: str, window_s: int) -> list[tuple[int, str]]:
        rows = shares(spark, service, backlog, window_s, {"slow": 18 * SECOND, "other": 1})
        return [
            (row["window_start"].minute, row["fairness_key"])
            for row in rows
            if row["starved"] and row["queue"] == queue
        ]

    # 10 x 18 s are three minutes; in a queue without a median one minute is enough.
    assert starving("slow", 60) == [(2, "starved")]
    assert starving("quick", 60) == [
        *((minute, key) for minute in (0, 1) for key in claims),
        (2, "starved"),
        *((3, key) for key in claims if key != "starved"),
    ]
    assert starving("slow", 3600) == [(0, "starved")]
    assert starving("quick", 3600) == [(0, key) for key in claims]


def test_a_wait_over_midnight_counts_from_midnight_on_the_next_day(spark: SparkSession) -> None:
    last = int((T0.replace(hour=0) + timedelta(days=1) - T0).total_seconds()) // 60 - 1
    rows = shares(
        spark,
        [],
        [waited(minute, "a") for minute in range(last - 1, last + 2)],
        60,
        {"q": 12 * SECOND},
    )
    assert column(rows, "starved") == [
        False,
        True,
        True,
    ]  # the median of the next day is not known, so a minute is enough


def test_weights_a_billion_times_apart_neither_overflow_nor_lose_the_light_key(
    spark: SparkSession,
) -> None:
    day = 86_400 * SECOND
    service = [served(0, "heavy", 0), served(0, "light", 86_400)]
    backlog = [
        waited(0, "heavy", arrived_us=day // 3, weight=1e6),
        waited(0, "light", arrived_us=2 * day, weight=1e-6),
    ]
    rows = shares(spark, service, backlog, 86_400)
    assert column(rows, "entitled_us") == [day // 3, day - day // 3]
    backlog = [row | {"arrived_us": 10} for row in backlog]
    assert column(shares(spark, service, backlog, 86_400), "entitled_us") == [10, 10]


def entitlements(demand: Sequence[int], weight: Sequence[float], capacity: int) -> list[Fraction]:
    """Return exact shares by water-filling: fill all keys that fit at the present level, and repeat."""
    entitled = [Fraction(0)] * len(demand)
    left, thirsty = Fraction(min(capacity, sum(demand))), set(range(len(demand)))
    while thirsty:
        level = left / sum(Fraction(weight[i]) for i in thirsty)
        full = {i for i in thirsty if demand[i] <= level * Fraction(weight[i])}
        if not full:
            for i in thirsty:
                entitled[i] = level * Fraction(weight[i])
            break
        for i in full:
            entitled[i] = Fraction(demand[i])
            left -= demand[i]
        thirsty -= full
    return entitled


key_loads = st.tuples(
    st.integers(0, 10**10),
    st.integers(0, 10**10),
    st.sampled_from([0.001, 0.5, 1.0, 1.0, 2.0, 1000.0]),
)
"""busy_us, demand_us, weight"""


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(key_loads, min_size=1, max_size=8), min_size=20, max_size=40))
def test_entitlement_is_the_water_filling_of_the_used_worker_time(
    spark: SparkSession, queues: list[list[tuple[int, int, float]]]
) -> None:
    service, backlog = [], []
    for number, loads in enumerate(queues):
        for key, (busy_us, demand_us, weight) in enumerate(loads):
            common = {"queue": f"{number:03}", "weight": weight}
            service.append(served(0, f"{key:03}", 0, **common, busy_us=busy_us))
            backlog.append(waited(0, f"{key:03}", arrived_us=demand_us, **common))
    found = pd.DataFrame(shares(spark, service, backlog)).groupby("queue")
    for (_, rows), loads in zip(found, queues, strict=True):
        busy, demand, weight = zip(*loads, strict=True)
        capacity = sum(busy)
        assert sum(rows["share"]) == pytest.approx(1 if capacity else 0)
        assert (rows["entitled_us"] >= 0).all() and (rows["entitled_us"] <= rows["demand_us"]).all()
        assert abs(rows["entitled_us"].sum() - min(capacity, sum(demand))) <= len(loads)
        assert list(rows["entitled_us"]) == pytest.approx(
            [float(x) for x in entitlements(demand, weight, capacity)], abs=1.5
        )


def test_one_heavy_task_among_many_hardly_moves_the_weight_of_its_key(spark: SparkSession) -> None:
    """240 tasks of weight 1 and one of weight 50, all with runs of 0.2 s."""
    service = [served(n, "b", 12, weight=1.0) for n in range(4)]
    service[0] |= {"busy_us": 12_200_000, "weight": 50.0, "weighted_us": 12e6 + 2e5 / 50}
    backlog = [waited(n, "b", claimed=60) for n in range(4)]
    backlog[0] |= {"claimed": 61, "weight": 50.0, "strides": 60 + 1 / 50}
    (row,) = shares(spark, service, backlog, 3600)
    assert row["weight"] == pytest.approx(241 / (240 + 1 / 50))  # 1.004
    assert row["weighted_us"] == 48e6 + 2e5 / 50
    # A window without a claim has the mean by worker time, and one without both the greatest weight.
    assert column(shares(spark, service, [], 3600), "weight") == [pytest.approx(48.2e6 / 48.004e6)]
    assert column(shares(spark, [], [waited(0, "b", weight=50.0)]), "weight") == [50.0]


def test_minutes_are_in_utc_whatever_the_time_zone_of_the_session(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        rows = shares(spark, [], [waited(0, "a")], 86_400)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert column(rows, "window_start") == [at(0).replace(hour=0)]
