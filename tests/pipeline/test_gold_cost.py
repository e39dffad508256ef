"""gold.cost in hand-made cases, and exact to the millionth for any bill."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fairlead.pipeline.models import SERVICE
from tests.pipeline.frames import T0, frame, records
from tests.pipeline.model_frames import cost
from tests.pipeline.silver_rows import SECOND, served

Row = dict[str, Any]
Bill = tuple[date, str, int, Decimal]
DAY = T0.date()
HOUR_US = 3600 * SECOND
NEXT_DAY = 14 * 60
"""Minutes from T0 to the next midnight."""


def split(
    spark: SparkSession, service: Sequence[Row], bills: Sequence[Bill], method: str = "usage"
) -> list[Row]:
    """Return the rows of gold.cost, by day, queue and key."""
    columns = "day date, queue string, worker_us bigint, amount decimal(18,6)"
    made = cost(frame(spark, SERVICE, service), spark.createDataFrame(list(bills), columns), method)
    return sorted(records(made), key=lambda row: (row["day"], row["queue"], row["fairness_key"]))


def amounts(rows: Sequence[Row]) -> list[tuple[str, str, Decimal]]:
    return [(row["queue"], row["fairness_key"], row["amount"]) for row in rows]


SERVICE_ROWS = [
    served(0, "a", 50, wasted_us=7 * SECOND),
    served(1, "a", 50),
    served(2, "b", 60, weight=3.0),
    served(62, "b", 60, weight=3.0, name="other"),
]


@pytest.mark.parametrize(
    ("method", "idle"),
    [
        ("usage", [400 * 100 / 220, 400 * 120 / 220]),
        ("peak", [400 * 100 / 160, 400 * 60 / 160]),
        ("reserved", [400 * 1 / 4, 400 * 3 / 4]),
    ],
)
def test_idle_time_is_divided_by_use_by_the_busiest_hour_or_by_weight(
    spark: SparkSession, method: str, idle: list[float]
) -> None:
    a, b = split(spark, SERVICE_ROWS, [(DAY, "*", 620 * SECOND, Decimal(62))], method)
    assert (a["busy_us"], a["wasted_us"], b["busy_us"]) == (100 * SECOND, 7 * SECOND, 120 * SECOND)
    assert [a["idle_allocated_us"], b["idle_allocated_us"]] == [round(s * SECOND) for s in idle]
    assert [float(a["amount"]), float(b["amount"])] == pytest.approx(
        [(100 + idle[0]) / 10, (120 + idle[1]) / 10]
    )
    assert a["amount"] + b["amount"] == 62
    assert a["price"] == b["price"] == pytest.approx(360)
    assert a["method"] == method


def test_one_heavy_run_does_not_reserve_the_day_for_its_key(spark: SparkSession) -> None:
    rows = [served(0, "a", 120), served(0, "b", 119), served(1, "b", 1, weight=50.0)]
    a, b = split(spark, rows, [(DAY, "*", 440 * SECOND, Decimal(44))], "reserved")
    assert b["idle_allocated_us"] / a["idle_allocated_us"] == pytest.approx(120 / 119.02)


def test_a_millionth_that_does_not_divide_goes_to_the_largest_remainder_and_then_by_key(
    spark: SparkSession,
) -> None:
    thirds = [served(0, key, 10) for key in "cab"]
    rows = split(spark, thirds, [(DAY, "q", 30 * SECOND, Decimal("0.000005"))])
    assert amounts(rows) == [
        ("q", "a", Decimal("0.000002")),
        ("q", "b", Decimal("0.000002")),
        ("q", "c", Decimal("0.000001")),
    ]
    uneven = [served(0, "a", 30), served(0, "b", 70)]
    rows = split(spark, uneven, [(DAY, "q", 100 * SECOND, Decimal("0.000001"))])
    assert amounts(rows) == [("q", "a", Decimal(0)), ("q", "b", Decimal("0.000001"))]


def test_a_bill_of_a_queue_is_for_that_queue_and_the_common_bill_for_the_others(
    spark: SparkSession,
) -> None:
    service = [served(0, "a", 10, queue=queue) for queue in ("own", "p", "q")]
    bills = [(DAY, "own", 20 * SECOND, Decimal(5)), (DAY, "*", 60 * SECOND, Decimal(8))]
    rows = split(spark, service, bills)
    assert amounts(rows) == [
        ("own", "a", Decimal(5)),
        ("p", "a", Decimal(4)),
        ("q", "a", Decimal(4)),
    ]
    assert [row["idle_allocated_us"] for row in rows] == [10 * SECOND, 20 * SECOND, 20 * SECOND]


def test_each_day_has_its_own_bill_and_two_bills_of_a_day_are_added(spark: SparkSession) -> None:
    service = [served(0, "a", 10), served(NEXT_DAY - 1, "a", 10), served(NEXT_DAY, "a", 10)]
    bills = [
        (DAY, "q", 0, Decimal(1)),
        (DAY, "q", 50 * SECOND, Decimal(2)),
        (DAY + timedelta(days=1), "q", 10 * SECOND, Decimal(7)),
    ]
    rows = split(spark, service, bills)
    assert [(row["day"].date() - DAY, row["amount"], row["idle_allocated_us"]) for row in rows] == [
        (timedelta(0), 3, 30 * SECOND),
        (timedelta(days=1), 7, 0),
    ]


def test_without_a_bill_only_use_is_shown(spark: SparkSession) -> None:
    rows = split(spark, [served(0, "a", 10, wasted_us=4), served(0, "b", 0)], [])
    assert [(row["busy_us"], row["wasted_us"], row["idle_allocated_us"]) for row in rows] == [
        (10 * SECOND, 4, 0),
        (0, 0, 0),
    ]
    assert [(row["amount"], row["price"]) for row in rows] == [(0, None), (0, None)]


def test_a_bill_for_a_day_without_runs_is_kept_under_a_star(spark: SparkSession) -> None:
    bills = [
        (DAY, "gone", HOUR_US, Decimal(3)),
        (DAY + timedelta(days=1), "*", HOUR_US, Decimal(4)),
    ]
    rows = split(spark, [served(0, "a", 1)], bills)
    assert amounts(rows) == [
        ("gone", "*", Decimal(3)),
        ("q", "a", Decimal(0)),
        ("*", "*", Decimal(4)),
    ]
    assert [row["idle_allocated_us"] for row in rows] == [HOUR_US, 0, HOUR_US]


def test_more_work_than_was_paid_for_leaves_no_idle_time(spark: SparkSession) -> None:
    rows = split(
        spark, [served(0, "a", 30), served(0, "b", 10)], [(DAY, "*", 20 * SECOND, Decimal(1))]
    )
    assert [(row["idle_allocated_us"], row["amount"]) for row in rows] == [
        (0, Decimal("0.75")),
        (0, Decimal("0.25")),
    ]


days = st.tuples(
    st.lists(
        st.tuples(st.integers(0, 60 * SECOND), st.sampled_from([0.001, 1.0, 2.5, 1e6])),
        min_size=1,
        max_size=9,
    ),
    st.integers(0, 10**15),
    st.integers(0, 10**17),
)
"""(busy_us, weight) of each key, worker_us paid for, the bill in millionths."""


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(days, min_size=15, max_size=30), st.sampled_from(["usage", "peak", "reserved"]))
def test_amounts_add_up_to_the_bill_exactly(
    spark: SparkSession, days: list[tuple[list[tuple[int, float]], int, int]], method: str
) -> None:
    service, bills = [], []
    for number, (keys, worker_us, millionths) in enumerate(days):
        bills.append((DAY + timedelta(days=number), "*", worker_us, Decimal(millionths).scaleb(-6)))
        for key, (busy_us, weight) in enumerate(keys):
            service.append(served(24 * 60 * number, f"{key}", 0, busy_us=busy_us, weight=weight))
    rows = split(spark, service, bills, method)
    for number, (keys, worker_us, millionths) in enumerate(days):
        mine = [row for row in rows if row["day"].date() - DAY == timedelta(days=number)]
        busy = sum(busy_us for busy_us, _ in keys)
        assert sum(row["amount"] for row in mine) == bills[number][3]
        assert sum(row["idle_allocated_us"] for row in mine) == max(0, worker_us - busy)
        paid = [row["busy_us"] + row["idle_allocated_us"] for row in mine]
        whole = sum(paid) or len(mine)
        for row, part in zip(mine, paid, strict=True):
            fair = Fraction(millionths * (part if sum(paid) else 1), whole)
            assert abs(Fraction(row["amount"]) * 10**6 - fair) < 1
