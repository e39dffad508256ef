"""Builds after a change: broken rows, ends of old tasks, and bills."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import date, timedelta
from decimal import Decimal

import pytest
from msgspec import structs

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline import settings as declared
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.jobs.checks import check
from fairlead.pipeline.models import ATTEMPTS, BACKLOG, COST, EVENTS, OPEN_TASKS, SERVICE, TASKS
from fairlead.pipeline.retention import drop_before
from fairlead.pipeline.settings import Cost, PipelineSettings
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.location import flat_name
from fairlead.pipeline.warehouse.table import PUBLISHED
from tests.pipeline import twin
from tests.pipeline.frames import T0, attempt, event
from tests.pipeline.model_frames import Bill
from tests.pipeline.tables_by_hand import rows_of
from tests.pipeline.test_build import SETTINGS, assert_same_rows, made_in
from tests.pipeline.test_quality import BROKEN
from tests.pipeline.warehouses import export

HOUR, DAY = 3600.0, 86_400.0


def test_broken_rows_that_arrive_later_are_quarantined_as_in_a_full_build(job: JobContext) -> None:
    export(job.warehouse, ATTEMPTS, [attempt()], hours=1)
    export(job.warehouse, EVENTS, [event()], hours=1)
    build(job, SETTINGS)
    no_end = attempt(finished_at=None, exported_at=30 * HOUR)  # nothing else happened in that hour
    broken = [attempt(**fields) for *_, fields in BROKEN]
    export(job.warehouse, ATTEMPTS, [no_end, *broken], hours=2)
    export(job.warehouse, EVENTS, [event() | {"at": None}, event(weight=0.0)], hours=2)
    run = build(job, SETTINGS)
    assert run.quarantined == 1 + len(BROKEN) + 2
    assert check(job.warehouse, SYSTEM_CLOCK).state == "done"
    found = made_in(job.warehouse)
    build(job, SETTINGS, full=True)
    assert_same_rows(found, made_in(job.warehouse))


def test_a_task_of_a_forgotten_day_that_ends_is_open_no_more(job: JobContext) -> None:
    """The row of such a task counts the attempts of the forgotten day and the later ones once."""
    tried = {"task_id": "tried", "submitted_at": 0}
    retried = attempt(**tried, outcome="retried", started_at=4)
    export(job.warehouse, ATTEMPTS, [retried, attempt(submitted_at=DAY)], hours=26)
    export(job.warehouse, EVENTS, [event(task_id=t, at=0) for t in ("open", "late")], hours=26)
    build(job, SETTINGS)
    assert drop_before(job.warehouse, date(2026, 3, 3)).days
    for hours in (30, 31):
        seconds = (hours - 1) * HOUR
        ends = [attempt(task_id="late", submitted_at=0, claimed_at=seconds)]
        ends += [attempt(**tried, attempt=2, ready_at=seconds, started_at=seconds + 2)]
        ends += [attempt(task_id="unknown", submitted_at=5, started_at=seconds)]
        # The next build reads the hour of these ends again.
        rows = ends if hours == 30 else [attempt(submitted_at=29 * HOUR - 1)]
        export(job.warehouse, ATTEMPTS, rows, hours=hours)
        build(job, SETTINGS)
        assert [row["task_id"] for row in rows_of(job.warehouse, OPEN_TASKS)] == ["open"]
        tasks = {row["task_id"]: row for row in rows_of(job.warehouse, TASKS)}
        late, twice, unknown = tasks["late"], tasks["tried"], tasks["unknown"]
        assert (late["state"], late["attempts"], late["run_us"]) == ("DONE", 1, 1_000_000)
        assert (twice["attempts"], twice["retries"], twice["run_us"]) == (2, 1, 2_000_000)
        assert (twice["state"], twice["queue_us"], twice["wait_us"]) == ("DONE", 0, 0)
        assert twice["first_started_at"] == retried["started_at"]
        assert (unknown["state"], unknown["attempts"]) == ("DONE", 1)
        [waits] = [
            row["depth_end"]
            for row in rows_of(job.warehouse, BACKLOG)
            if f"{row['minute']:%d %H:%M}" == "03 15:30"
        ]
        assert waits == 1
        assert check(job.warehouse, SYSTEM_CLOCK).state == "done"
    assert (tasks["late"]["wait_us"], tasks["late"]["e2e_us"]) == (29 * HOUR * 1e6, 104_401_000_000)


def test_a_full_build_makes_tables_again_that_are_lost(job: JobContext) -> None:
    """One table is gone with its files, and of another the snapshot of the last build."""
    export(job.warehouse, ATTEMPTS, [attempt(fairness_key=key) for key in "ab"], hours=1)
    build(job, SETTINGS)
    wanted, here = made_in(job.warehouse), job.warehouse.table(TASKS)
    job.warehouse.catalog.drop_table(f"fairlead.{flat_name(BACKLOG)}")
    shutil.rmtree(job.warehouse.location.url_of(BACKLOG).removeprefix("file://"))
    here.update(lambda seen: {})
    stored = here.state().stored
    assert stored is not None
    stored.manage_snapshots().remove_tag(PUBLISHED).commit()
    assert here.expire(SYSTEM_CLOCK.now() + DAY_US)
    with pytest.raises(BrokenLake, match="build --full"):
        build(job, SETTINGS)
    assert build(job, SETTINGS, full=True).state == "done"
    assert_same_rows(made_in(job.warehouse), wanted)
    assert check(job.warehouse, SYSTEM_CLOCK).state == "done"
    assert build(job, SETTINGS).state == "nothing to do"


def assert_costs(job: JobContext, settings: PipelineSettings) -> dict[date, Decimal]:
    """Check the division of each day's bill against the twin of gold.cost, and the worker time
    against the runs. Return the amounts by day."""
    served, found = rows_of(job.warehouse, SERVICE), rows_of(job.warehouse, COST)
    days = {row["window_start"].date() for row in served}
    bills = [Bill(*bill) for bill in settings.bills_for(days)]
    columns = ("day", "queue", "fairness_key", "busy_us", "idle_allocated_us", "amount")
    expected, shown = (
        sorted(tuple(row[name] for name in columns) for row in rows)
        for rows in (twin.cost(served, bills, settings.cost.method), found)
    )
    assert shown == expected
    runs = job.warehouse.table(ATTEMPTS).load().to_pylist()
    assert sum(row["busy_us"] for row in found) == sum(
        (row["finished_at"] - row["started_at"]) // timedelta(microseconds=1) for row in runs
    )
    amounts = Counter[date]()
    for row in found:
        amounts[row["day"].date()] += row["amount"]
    assert all(
        amounts[day] == sum(bill.amount for bill in bills if bill.day == day) for day in days
    )
    return amounts


def test_keys_pay_the_bill_of_a_day_however_it_was_built(job: JobContext) -> None:
    price = Cost(workers=1.5, worker_hour=Decimal("0.123457"))
    settings = PipelineSettings(cost=price)
    attempts = [
        attempt(
            submitted_at=n * 4111,
            started_at=n * 4111 + 7,
            finished_at=n * 4111 + 2300.000001 + n % 7,
            fairness_key="abcd"[n % 4],
            queue="qqr"[n % 3],
        )
        for n in range(66)
    ]
    export(job.warehouse, ATTEMPTS, attempts[::2], hours=76)
    build(job, settings)
    export(job.warehouse, ATTEMPTS, attempts[1::2], hours=76)
    build(job, settings)
    amounts = assert_costs(job, settings)
    begin = T0.replace(hour=0) + timedelta(days=1)
    exact = Decimal("1.5") * Decimal("0.123457") * 24
    assert amounts[begin.date()] == exact.quantize(Decimal("0.000001"))
    found = made_in(job.warehouse)
    build(job, settings, full=True)
    assert_same_rows(made_in(job.warehouse), found)

    bills = [
        declared.Bill(begin.date(), Decimal("17.0000017"), 31.5),
        declared.Bill(begin.date(), Decimal("0.03"), 15.0, "r"),
    ]
    settings = PipelineSettings(cost=structs.replace(price, method="peak"), bill=bills)
    build(job, settings)
    assert assert_costs(job, settings)[begin.date()] == Decimal("17.030002")
    assert check(job.warehouse, SYSTEM_CLOCK).state == "done"


def test_late_rows_of_a_forgotten_day_change_no_table_of_that_day(job: JobContext) -> None:
    runs = [attempt(submitted_at=n * 24 * HOUR) for n in range(3)]
    export(job.warehouse, ATTEMPTS, runs, hours=50)
    build(job, SETTINGS)
    before = made_in(job.warehouse)
    assert drop_before(job.warehouse, T0.date() + timedelta(days=1)).days
    export(job.warehouse, ATTEMPTS, [attempt(submitted_at=HOUR)], hours=51)
    build(job, SETTINGS, full=True)
    assert_same_rows(made_in(job.warehouse), before)
