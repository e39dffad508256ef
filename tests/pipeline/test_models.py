"""Each model makes the rows of its twin in plain Python, from drawn rows that cross midnight; some
cases by hand judge both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from itertools import groupby
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead.clock import to_micros
from fairlead.pipeline.models import (
    BACKLOG,
    COST,
    FAILURES,
    FAIRNESS,
    LATENCY,
    LATENCY_HIST,
    OPEN_TASKS,
    SERVICE,
    SLO,
    SLO_COUNTS,
    TABLES,
    TASKS,
    TENANT_SHARE,
)
from fairlead.pipeline.schema import Table
from tests.pipeline import twin
from tests.pipeline.frames import T0, at, attempt, attempts_frame, event, history, records
from tests.pipeline.model_frames import Bill, Objective, made, model
from tests.pipeline.silver_rows import SECOND, served, waited
from tests.pipeline.twin import DAY, HOUR, MINUTE, Row
from tests.pipeline.warehouses import moved

MIDNIGHT = 14 * 60
"""Minutes from T0 to the next midnight."""
OBJECTIVES = [
    Objective("pickup", "q", "*", "pickup", 2 * SECOND, 0.9),
    Objective("run", "p", "mail", "run", 60 * SECOND, 0.99),
    Objective("ends", "q", "report", "e2e", 600 * SECOND, 0.5),
]


# drawn rows ---------------------------------------------------------------------------------------


def attempts(random: Random) -> list[Row]:
    """Return tasks of up to three attempts in the hours around midnight, in two stores with the same
    ids; among them rows of tasks that a person ended."""
    rows = [moved(row, timedelta(hours=12)) for row in history(random, 120, hours=4)]
    task, number = 0, 0
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        number += 1
        is_last = following is None or number == 3 or random.random() < 0.4
        if not is_last and row["next_state"] not in ("WAITING", "SUBMITTED"):
            outcome = random.choice(("retried", "lost")) if row["started_at"] else "lost"
            row |= {"outcome": outcome, "next_state": "WAITING"}
        if row["outcome"] == "failed" and row["started_at"] is None:
            row["next_state"] = "FAILED"
        row |= {
            "store_id": "store" if task < 30 else f"store {task // 30}",
            "task_id": f"t{task % 30}",
            "attempt": number,
            "version": 2 * number,
            "ordering_key": random.choice((None, "o")),
            "error_fp": random.choice((None, 7, 8)),
            "error_type": random.choice((None, "E")),
            "error_text": random.choice((None, "no")),
            "fairness_key": random.choice((row["fairness_key"],) * 4 + ("*",)),
        }
        if is_last:
            task, number = task + 1, 0
    return rows


def events(random: Random) -> list[Row]:
    """Return submits, some of them twice, and other events of tasks with and without attempts."""
    rows = [
        event(
            task_id=f"t{random.randrange(60)}",
            kind=random.choice(("submitted", "submitted", "resumed")),
            at=12 * 3600 + random.randrange(9000),
            weight=random.choice((1.0, 2.0)),
        )
        for _ in range(40)
    ]
    first = {row["task_id"]: row for row in reversed(rows)}
    for row in first.values():
        row["run_at"] += timedelta(seconds=random.choice((-5, 0, 65)))
    return [*first.values(), *random.sample(list(first.values()), 5)]


def edges() -> list[Row]:
    """Return runs at a threshold of an objective, and one that succeeds as another fails."""
    failed = {"outcome": "retried", "error_fp": 7}
    ties = [attempt(name="ties", finished_at=100, **failed)]
    ties += [attempt(name="ties", finished_at=end) for end in (100, 150)]
    return [*ties, *(attempt(started_at=2 + late) for late in (0, 0.000001))]


def storms() -> list[Row]:
    """Return an hour with many runs of three names, of which one has a storm of errors."""
    counts = {"storm": (100, 99), "few": (99, 0), "half": (100, 100)}
    failed = {"outcome": "retried", "error_fp": 7}
    return [
        attempt(name=name, **(failed if n < bad else {}))
        for name, (bad, good) in counts.items()
        for n in range(bad + good)
    ]


def minutes(random: Random) -> tuple[list[Row], list[Row]]:
    """Return minutes of service and of backlog around midnight, and an hour in which two of three
    keys always waited."""
    service, backlog = [], []
    for queue in "qr":
        for key in "abcde":
            weight = random.choice((1e-6, 0.5, 1.0, 1.0, 2.0, 1e6))
            for minute in range(MIDNIGHT - 9, MIDNIGHT + 9):
                of = {"queue": queue, "weight": random.choice((weight, weight, 1.0))}
                if random.random() < 0.5:
                    busy = random.choice((0, 3, random.random() * 90))
                    service.append(served(minute, key, busy, **of))
                if random.random() < 0.9:
                    backlog.append(
                        waited(
                            minute,
                            key,
                            **of,
                            arrived_us=random.choice((0, random.randrange(10**8))),
                            work_us=random.choice((0, random.randrange(10**8))),
                            claimed=random.choice((0, 0, 0, 0, 1, 3)),
                            depth_min=random.choice((0, 1, 1, 1)),
                            backlogged_us=random.choice((0, 30, 60, 60)) * SECOND,
                        )
                    )
    for minute in range(60):
        backlog += [waited(minute, "always"), waited(minute, "on the grid", depth_min=0)]
        backlog += [waited(minute, "nearly", backlogged_us=(59 + (minute < 59)) * SECOND)] * (
            minute < 59
        )
    return service, backlog


def shares(random: Random) -> list[Row]:
    """Return rows of gold.tenant_share of windows with up to five keys."""
    rows = []
    for window in range(150):
        keys = random.randrange(1, 6)
        rows += [
            {
                "window_start": at(60 * window),
                "window_s": random.choice((60, 3600)) if keys == 1 else 60,
                "queue": "q",
                "fairness_key": key,
                "busy_us": random.choice((0, 10**6, random.randrange(10**8))),
                "entitled_us": random.choice((0, 10**6, random.randrange(10**8))),
                "weight": random.choice((0.5, 1.0, 4.0)),
                "lag_us": random.choice((0, random.randrange(-(10**8), 10**8))),
                "throughout": random.random() < 0.7,
                "claimed": random.randrange(9),
                "longest_run_us": random.randrange(10**8),
                "starved": random.random() < 0.2,
            }
            for key in "abcde"[:keys]
        ]
    for _, rivals in groupby(rows, lambda row: row["window_start"]):
        inside = list(rivals)
        for row in inside:
            row["share"] = row["busy_us"] / max(1, sum(each["busy_us"] for each in inside))
    return rows


def billed(random: Random) -> tuple[list[Row], list[Bill]]:
    """Return the service of nine days, and bills of some queues, some of all others, and of none."""
    service, bills = [], []
    for day in range(9):
        for queue in "pqr":
            for key in "abc"[: random.randrange(4)]:
                service += [
                    served(
                        1440 * day + random.randrange(240),
                        key,
                        random.choice((0, 10, random.random() * 60)),
                        queue=queue,
                        name=name,
                        weight=random.choice((0.5, 1.0, 4.0)),
                        wasted_us=random.randrange(9),
                    )
                    for name in ("mail", "mail", "report")[: random.randrange(1, 4)]
                ]
        for queue in random.choices(("*", "p", "gone"), k=random.randrange(4)):
            amount = Decimal(random.choice((0, 1, 5, random.randrange(10**15)))).scaleb(-6)
            worker_us = random.choice((0, 10 * SECOND, random.randrange(10**10)))
            bills.append(Bill(T0.date() + timedelta(days=day), queue, worker_us, amount))
    return service, bills


def counts(random: Random) -> list[Row]:
    """Return four days of good and bad runs, with better and worse hours."""
    return [
        {
            "window_start": at(300 * window),
            "slo_id": promise.slo_id,
            "good": random.randrange(1, 100),
            "bad": random.choice((0, 0, 0, random.randrange(100)) if window // 40 % 3 else (0,)),
        }
        for promise in OBJECTIVES
        for window in range(-1150, 0)
        if random.random() < 0.3
    ]


# the judge ----------------------------------------------------------------------------------------

Case = tuple[Mapping[str, Any], Mapping[str, Any], Any]
"""Rows by the names in the query, parameters of the query, and the rows of the twin."""


def of_attempts(by: Callable[..., Any], *more: Any, **given: Any) -> Callable[[Random], Case]:
    def case(random: Random) -> Case:
        rows = attempts(random) + edges() + storms() * (by is twin.failures)
        sources = {"sound_attempts": rows, "slo_objectives": OBJECTIVES}
        hist = {"gold_latency_hist": list(twin.latency_hist(rows)) if "least" in given else []}
        return sources | hist, given, by(rows, *more)

    return case


def of_tasks(random: Random) -> Case:
    rows, submits = attempts(random), events(random)
    return {"sound_attempts": rows, "sound_events": submits}, {}, twin.tasks(rows, submits)


def of_open_tasks(random: Random) -> Case:
    rows = list(twin.tasks(attempts(random), events(random)))
    return {"silver_tasks": rows}, {}, twin.open_tasks(rows)


def of_backlog(random: Random) -> Case:
    """Some hours of a build, the last one known up to some minute."""
    rows, first = attempts(random)[:60], to_micros(at(11 * 3600))
    waiting = [
        {"task_id": str(n), "queue": "q", "fairness_key": key, "weight": 1.0 + n}
        | {"ready_at": at(random.uniform(11, 16) * 3600)}
        for n, key in enumerate("abd")
    ]
    hours = [first + n * HOUR for n in (0, 1, 3, 4, 5)]
    known = random.choice((hours[-1] + 7 * MINUTE, hours[-1] + HOUR))
    given = {"first": first, "last": hours[-1], "known": known}
    sources = {"sound_attempts": rows, "silver_open_tasks": waiting}
    build_hours = [(hour,) for hour in hours]
    return sources | {"build_hours": build_hours}, given, twin.backlog(rows, waiting, hours, known)


def of_shares(random: Random) -> Case:
    """Median pickups of 18 and 20 s make three and four minutes of waiting a starved key, on one
    day."""
    service, backlog = minutes(random)
    pickups = {"q": 18 * SECOND, "r": 20 * SECOND}
    of = {"window_start": T0.replace(hour=0), "window_s": 86_400, "measure": "pickup"}
    medians = [
        of | {"queue": queue, "fairness_key": "*", "p50": float(p50)}
        for queue, p50 in pickups.items()
    ]
    rows = {"silver_service": service, "silver_backlog": backlog, "gold_latency": medians}
    by_day = {(to_micros(T0) // DAY * DAY, queue): p50 for queue, p50 in pickups.items()}
    return rows, {}, twin.tenant_share(service, backlog, by_day)


def of_fairness(random: Random) -> Case:
    rows = shares(random)
    return {"gold_tenant_share": rows}, {}, twin.fairness(rows)


def of_cost(method: str) -> Callable[[Random], Case]:
    def case(random: Random) -> Case:
        service, bills = billed(random)
        rows = {"silver_service": service, "cost_bills": bills}
        return rows, {"method": method}, twin.cost(service, bills, method)

    return case


def of_slo(random: Random) -> Case:
    rows = counts(random)
    sources = {"gold_slo_counts": rows, "slo_objectives": OBJECTIVES}
    return sources, {}, twin.slo(rows, OBJECTIVES)


CASES = [
    (SERVICE, of_attempts(twin.service)),
    (TASKS, of_tasks),
    (OPEN_TASKS, of_open_tasks),
    (BACKLOG, of_backlog),
    (FAILURES, of_attempts(twin.failures)),
    (LATENCY_HIST, of_attempts(twin.latency_hist)),
    (LATENCY, of_attempts(twin.latency, 3, least=3)),
    (SLO_COUNTS, of_attempts(twin.slo_counts, OBJECTIVES)),
    (SLO, of_slo),
    (TENANT_SHARE, of_shares),
    (FAIRNESS, of_fairness),
    *((COST, of_cost(method)) for method in ("usage", "peak", "reserved")),
]


@pytest.mark.parametrize("few", [True, False], ids=["one task", "several tasks"])
@pytest.mark.parametrize(("table", "case"), CASES, ids=lambda each: getattr(each, "name", "rows"))
def test_a_model_makes_the_rows_of_its_twin(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    few: bool,
    table: Table,
    case: Callable[[Random], Case],
) -> None:
    """In one task of Spark as in several. The columns have the types that the header declares."""
    random = Random(f"{table.name} {few} {request.config.option.hypothesis_seed or 0}")
    rows, given, expected = case(random)
    frame = model(spark, table, rows, few, **given)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        (column.name, column.type) for column in table.columns
    ]
    found, wanted = by_key(table, records(frame)), by_key(table, list(expected))
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        assert found[key] == {
            name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            for name, value in row.items()
        }, key
    for column in table.columns:
        values = [row[column.name] for row in wanted.values()]
        if column.type == "boolean":
            assert {True, False} <= {*values}, f"a case is missing: {column.name}"
        if column.nullable and table is not OPEN_TASKS:
            assert 0 < values.count(None) < len(values), f"a case is missing: {column.name}"


def by_key(table: Table, rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    found = {tuple(row[name] for name in table.key): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_of_a_table_has_a_description(table: Table) -> None:
    assert set(table.key) | {table.instant} <= set(table.column_names)
    assert all(len(column.doc) > 8 for column in table.columns)


# by hand ------------------------------------------------------------------------------------------


def picked(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_a_run_over_midnight_is_split_to_the_microsecond(spark: SparkSession) -> None:
    run = attempt(started_at=60 * MIDNIGHT - 9.999999, finished_at=60 * MIDNIGHT + 70.5)
    found = made(spark, SERVICE, sound_attempts=[run])
    assert picked(found, "window_start", "busy_us", "attempts_started", "attempts_done") == [
        (at(60 * (MIDNIGHT - 1)), 9_999_999, 1, 0),
        (at(60 * MIDNIGHT), 60_000_000, 0, 0),
        (at(60 * (MIDNIGHT + 1)), 10_500_000, 0, 1),
    ]


def test_a_chain_of_retries_is_one_task(spark: SparkSession) -> None:
    of = {"task_id": "t", "submitted_at": 0}
    chain = [
        attempt(**of, ready_at=0, claimed_at=3, started_at=4, finished_at=9, outcome="retried"),
        attempt(**of, attempt=2, ready_at=20, claimed_at=21, started_at=None, outcome="lost"),
        attempt(**of, attempt=3, ready_at=60, claimed_at=66, finished_at=86.5),
    ]
    [task] = made(spark, TASKS, sound_attempts=chain, sound_events=[event(task_id="t")])
    assert (task["attempts"], task["retries"], task["state"]) == (3, 2, "DONE")
    assert (task["wait_us"], task["queue_us"], task["run_us"]) == (3e6, 10e6, 25.5e6)
    assert (task["e2e_us"], task["slowdown"]) == (86.5e6, pytest.approx(35.5 / 25.5))


def test_the_unused_share_of_a_key_is_divided_by_weight_among_keys_that_want_more(
    spark: SparkSession,
) -> None:
    # Key a wanted 10 of 100 s and gets 10. The other 90 s are divided between b and c by weight, one to two:
    # 30 and 60.
    service = [served(0, "a", 10), served(0, "b", 60), served(0, "c", 30, weight=2.0)]
    wants = [("a", 10, 1.0), ("b", 100, 1.0), ("c", 100, 2.0)]
    backlog = [waited(0, key, arrived_us=s * SECOND, weight=weight) for key, s, weight in wants]
    found = made(spark, TENANT_SHARE, silver_service=service, silver_backlog=backlog)[:3]
    assert picked(found, "entitled_us", "deficit_us", "share") == [
        (10 * SECOND, 0, 0.1),
        (30 * SECOND, -30 * SECOND, 0.6),
        (60 * SECOND, 30 * SECOND, 0.3),
    ]


def test_jains_index_and_the_bound_of_fair_queueing_are_about_keys_that_always_waited(
    spark: SparkSession,
) -> None:
    # a got all it was due, b a third: Jain (4/3)^2 / (2 (1 + 1/9)) = 0.8. c was idle for a while
    # and is not compared, but has a third of the service and a seventh of the entitlement.
    of = {"window_start": T0, "window_s": 60, "queue": "q", "weight": 1.0, "starved": False}
    names = ("fairness_key", "busy_us", "entitled_us", "lag_us", "longest_run_us", "claimed")
    rows = [
        of | dict(zip(names, values, strict=True)) | {"throughout": values[0] != "c"}
        for values in (
            ("a", 30 * SECOND, 30 * SECOND, -5, 5 * SECOND, 6),
            ("b", 10 * SECOND, 30 * SECOND, 70, 2 * SECOND, 2),
            ("c", 20 * SECOND, 10 * SECOND, 99, 9 * SECOND, 50),
        )
    ]
    for row in rows:
        row["share"] = row["busy_us"] / (60 * SECOND)
    [row] = made(spark, FAIRNESS, gold_tenant_share=rows)
    assert (row["n_keys"], row["jain"]) == (2, pytest.approx(0.8))
    assert (row["sfq_gap"], row["sfq_bound"], row["bound_ok"]) == (20 * SECOND, 7 * SECOND, False)
    assert (row["claim_gap"], row["claim_bound"], row["max_lag_key"]) == (4.0, 2.0, "c")
    assert (row["noisy_key"], row["noisy_score"]) == ("c", pytest.approx(7 / 3))


def test_a_millionth_that_does_not_divide_goes_to_the_largest_remainder_and_then_by_key(
    spark: SparkSession,
) -> None:
    def amounts(paid_s: int, amount: str, **busy: float) -> list[Decimal]:
        bills = [Bill(T0.date(), "q", paid_s * SECOND, Decimal(amount))]
        service = [served(0, key, seconds) for key, seconds in busy.items()]
        found = made(spark, COST, silver_service=service, cost_bills=bills)
        return [row["amount"] * 10**6 for row in found]

    assert amounts(30, "0.000005", a=10, b=10, c=10) == [2, 2, 1]
    assert amounts(100, "0.000001", a=30, b=70) == [0, 1]


def test_a_fast_burn_pages_and_stops_paging_when_it_ends(spark: SparkSession) -> None:
    # One run in a hundred may be bad; after a good day, an hour with 20 % bad runs burns 20 x. The
    # rate over an hour reaches 14.4 x in its ninth window. After it the last hour still exceeds the
    # rate, but the last five minutes do not.
    bad = [0] * 288 + [20] * 12 + [0] * 2
    rows = [
        {"window_start": at(300 * n), "slo_id": "run", "good": 100 - b, "bad": b}
        for n, b in enumerate(bad)
    ]
    found = made(spark, SLO, gold_slo_counts=rows, slo_objectives=OBJECTIVES)
    states = [row["state"] for row in found]
    assert set(states[:296]) == {"ok"} and states[296:300] == ["page"] * 4
    assert "page" not in states[300:]


def test_ranks_of_a_key_with_very_many_attempts_are_within_their_bound(
    spark: SparkSession,
) -> None:
    count = 300_000
    one = attempts_frame(spark, [attempt()])
    finished = F.expr("timestamp_micros(unix_micros(started_at) + id)")
    rows = spark.range(1, count + 1).crossJoin(one).withColumn("finished_at", finished).drop("id")
    hist = model(spark, LATENCY_HIST, {"sound_attempts": rows})
    frame = model(spark, LATENCY, {"sound_attempts": rows, "gold_latency_hist": hist})
    found = records(frame.where("measure = 'run' AND window_s = 86400"))
    for name, per_mille in twin.PERCENTILES.items():
        for row in found:
            error = {"rel": 0.01} if row["fairness_key"] == "*" else {"abs": count / 10_000}
            assert row[name] == pytest.approx(count * per_mille / 1000, **error), name
    assert len(found) == 2
