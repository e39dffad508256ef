"""Periodic tasks: each slot after the first registration runs once, as the catch-up policy says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from fairlead import App, NoRetry
from fairlead.backends.sql.periodic import PeriodicStore
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.clock import MICROS, SystemClock, to_datetime
from fairlead.core.policies.catch_up import LATE_SECONDS
from fairlead.engine.periodic import PeriodicTasks
from fairlead.errors import ConfigurationError, NotAllowed, StoreUnavailable, UnknownTask
from fairlead.testing import running
from tests.tiers import seeds

pytestmark = [pytest.mark.sqlite, pytest.mark.virtual_time]

MINUTE, HOUR = 60.0, 3600.0


def seconds_to(app: App, minute: int, second: float = 0) -> float:
    """Return the seconds until this minute and second of the next hour."""
    now = to_datetime(app.clock.now())
    at = now.replace(minute=minute, second=0, microsecond=0) + timedelta(hours=1, seconds=second)
    return (at - now).total_seconds()


async def at(app: App, minute: int, second: float = 0) -> None:
    """Sleep until this minute and second of the next hour."""
    await asyncio.sleep(seconds_to(app, minute, second))


def minutes(slots: list[datetime]) -> list[int]:
    return [slot.minute for slot in slots]


def ticking(url: str, cron: str, name: str = "tick", **options: Any) -> tuple[App, list[datetime]]:
    """Return an application with one periodic task, and the list of slots that have run."""
    app, slots = App(url), []

    # A queue for each name, so that each node serves only its own task.
    @app.periodic(cron, **options)
    @app.task(name=name, queue=name)
    async def tick(slot: datetime) -> None:
        slots.append(slot)

    return app, slots


@asynccontextmanager
async def nodes(*apps: App) -> AsyncIterator[None]:
    """Run a node of each application during the block."""
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(running(app))
        yield


@pytest.mark.smoke
async def test_periodic_tasks_of_two_applications_on_one_database_run_each_slot(
    app: App,
) -> None:
    one, first = ticking(app.url, "* * * * *", "first")
    other, second = ticking(app.url, "* * * * *", "second")
    await at(one, 0, 30)
    async with nodes(one, other):
        await asyncio.sleep(5 * MINUTE)
    assert minutes(first) == minutes(second) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("policy", "ran"), [("last", [10]), ("all", [2, 4, 6, 8, 10]), ("none", [])]
)
async def test_the_catch_up_policy_chooses_which_missed_slots_run(
    app: App, policy: str, ran: list[int]
) -> None:
    app, slots = ticking(app.url, "*/2 * * * *", catch_up=policy)
    await at(app, 1)
    async with nodes(app):
        await asyncio.sleep(1)
    await asyncio.sleep(10.5 * MINUTE)
    async with nodes(app):
        await asyncio.sleep(1)
    assert sorted(minutes(slots)) == ran


@pytest.mark.parametrize(
    ("overlap", "runs", "later"),
    [("allow", 30, range(37, 45)), ("skip", 1, (37, 38, 39, 42, 43, 44))],
)
async def test_slots_overlap_unless_they_are_skipped(
    app: App, overlap: str, runs: int, later: Sequence[int]
) -> None:
    slots: list[datetime] = []

    @app.periodic("* * * * *", overlap=overlap)
    @app.task(retry=NoRetry())
    async def tick(slot: datetime) -> None:
        slots.append(slot)
        if slot.minute == 37:
            raise ValueError("in ERROR, a task neither waits nor runs")
        if slot.minute == 39:
            await asyncio.sleep(150.0)

    await at(app, 5, 30)
    async with nodes(app):
        await asyncio.sleep(MINUTE)
        app.management.pause("default")
        await asyncio.sleep(30 * MINUTE)
        app.management.unpause("default")
        await asyncio.sleep(10.0)
        assert len(slots) == 1 + runs
        await asyncio.sleep(8 * MINUTE)
    assert minutes(slots)[1 + runs :] == list(later)


async def test_the_catch_up_policy_all_runs_at_most_the_latest_thousand_slots(app: App) -> None:
    app, slots = ticking(app.url, "* * * * *", catch_up="all")
    await at(app, 0, 30)
    async with nodes(app):
        await asyncio.sleep(1)
    await asyncio.sleep(2000 * MINUTE)
    last = to_datetime(app.clock.now()).replace(second=0, microsecond=0)
    async with nodes(app):
        await asyncio.sleep(20)
    assert sorted(slots) == [last - timedelta(minutes=n) for n in reversed(range(1000))]


async def test_a_rolling_deploy_to_another_cron_expression_runs_each_slot_once(app: App) -> None:
    old, before = ticking(app.url, "0 * * * *")
    new, after = ticking(app.url, "*/20 * * * *")
    await at(app, 30)
    async with nodes(old):
        await asyncio.sleep(5)
        async with nodes(new):
            await asyncio.sleep(30 * MINUTE)
    assert sorted(minutes([*before, *after])) == [0, 40]


async def test_a_periodic_task_that_cannot_be_submitted_stops_no_other(app: App) -> None:
    slots: list[datetime] = []

    class Refuse:
        def submitting(self, draft: Any) -> Any:
            if draft.handler.name == "broken":
                raise ValueError("no")
            return draft

    app = App(app.url, interceptors=[Refuse()])

    @app.periodic("* * * * *")
    async def broken() -> None: ...

    @app.periodic("* * * * *")
    async def tick(slot: datetime) -> None:
        slots.append(slot)

    await at(app, 0, 30)
    async with nodes(app):
        await asyncio.sleep(2 * MINUTE)
    assert minutes(slots) == [1, 2]


@pytest.mark.parametrize("annotation", [int, str, dict[str, int]])
def test_a_slot_of_another_type_is_refused_when_it_is_declared(app: App, annotation: type) -> None:
    async def tick(slot: Any) -> None: ...

    tick.__annotations__["slot"] = annotation
    with pytest.raises(ConfigurationError, match="task 'tick': .*the slot is a datetime"):
        app.periodic("* * * * *")(tick)


async def test_two_declarations_of_one_task_keep_their_own_slots(app: App) -> None:
    slots: list[datetime] = []

    @app.periodic("10 * * * *")
    @app.periodic("20 * * * *")
    @app.task
    async def tick(slot: datetime) -> None:
        slots.append(slot)

    await at(app, 5)
    async with nodes(app):
        await asyncio.sleep(20 * MINUTE)
        names = [status.record.name for status in app.management.periodic.list()]
    assert (names, minutes(slots)) == (["tick", "tick#2"], [10, 20])


async def test_a_periodic_task_runs_at_once_on_request(app: App) -> None:
    app, slots = ticking(app.url, "0 2 * * *", timezone="Europe/Athens")
    app.management.periodic.run("tick")
    asked = to_datetime(app.clock.now())
    async with nodes(app):
        await asyncio.sleep(1)
    assert slots == [asked]
    with pytest.raises(UnknownTask, match="it has tick"):
        app.management.periodic.run("tock")


async def test_a_periodic_task_that_nobody_declares_stays_until_a_person_removes_it(
    app: App,
) -> None:
    app, _ = ticking(app.url, "* * * * *")
    management = app.management.periodic
    async with nodes(app):
        await asyncio.sleep(10 * MINUTE)
        (status,) = management.list()
        assert status.is_declared
        assert status.next_slot_at is not None
        with pytest.raises(NotAllowed, match="is declared by worker"):
            management.remove("tick")
    await asyncio.sleep(4 * MINUTE)
    (status,) = management.list()
    assert (status.is_declared, status.next_slot_at) == (False, None)
    management.remove("tick")
    assert management.list() == []
    for command in (management.pause, management.resume, management.remove):
        with pytest.raises(UnknownTask, match="known: none"):
            command("tick")


async def test_a_node_that_dies_in_a_submit_loses_no_slot(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, slots = ticking(app.url, "* * * * *")
    insert, failures = SqliteTaskStore.insert, iter([StoreUnavailable("cut"), None])

    def cut(store: Any, tasks: Any) -> Any:
        inserted = yield from insert(store, tasks)
        if failure := next(failures, None):
            raise failure
        return inserted

    monkeypatch.setattr(SqliteTaskStore, "insert", cut)
    await at(app, 0, 30)
    async with nodes(app):
        await asyncio.sleep(2 * MINUTE)
    assert minutes(slots) == [1, 2]


class TwoDaysAhead(SystemClock):
    """The clock of a machine that is set wrong."""

    def now(self) -> int:
        return super().now() + 2 * 24 * 3600 * MICROS


@pytest.mark.system_time
async def test_a_node_whose_clock_is_ahead_submits_no_slot_early(postgres_url: str) -> None:
    url = postgres_url
    right, _ = ticking(url, "0 0 * * *")
    wrong, _ = ticking(url, "0 0 * * *")
    wrong.clock = TwoDaysAhead()
    right.migrate()
    for app in (right, wrong):
        await part_of(app, "a node").round()
    wrong.management.periodic.pause("tick")
    wrong.management.periodic.resume("tick")
    (status,) = right.management.periodic.list()
    assert status.record.last_slot_at is None
    assert status.record.passed_at <= right.clock.now() + 60 * MICROS
    for app in (right, wrong):
        await app.store.database.close_async()
        app.close()


def chosen(policy: str, due: list[int], now: float) -> list[int]:
    """Return which of the minutes `due` at `now` (seconds) the policy runs."""
    if policy == "none":
        return [minute for minute in due if now - minute * MINUTE <= LATE_SECONDS]
    return due if policy == "all" else due[-1:]


def part_of(app: App, node: str, submitter: Any = None, patience: float = 0.0) -> PeriodicTasks:
    """Return the part of a node that submits periodic tasks."""
    store = app.store
    submitter = submitter or app.submitter
    return PeriodicTasks(
        node, app.periodics, store.database, PeriodicStore(store), submitter, app.clock, patience
    )


@asynccontextmanager
async def periodic_parts(app: App, count: int) -> AsyncIterator[None]:
    """Submit periodic tasks from `count` nodes during the block, and kill these at its end."""
    parts = [part_of(app, f"node {n}") for n in range(count)]
    running_parts = [asyncio.create_task(part.run()) for part in parts]
    try:
        yield
    finally:
        for part in running_parts:
            part.cancel()
        await asyncio.wait(running_parts)


@pytest.mark.parametrize("policy", ["last", "all", "none"])
@pytest.mark.parametrize("seed", seeds(2))
async def test_after_random_outages_each_slot_runs_as_its_policy_says(
    app: App, policy: str, seed: int
) -> None:
    chance = random.Random(seed)
    every = chance.choice([1, 2, 5, 15])
    app, _ = ticking(app.url, f"*/{every} * * * *", catch_up=policy)
    await at(app, 0, 7)
    hour = to_datetime(app.clock.now()).replace(minute=0, second=0, microsecond=0)

    def now() -> float:
        return (to_datetime(app.clock.now()) - hour).total_seconds()

    def due(after: float) -> list[int]:
        return [
            n for n in range(int(after // MINUTE) + 1, int(now() // MINUTE) + 1) if n % every == 0
        ]

    passed, expected = now(), list[int]()
    for _ in range(10):
        expected += chosen(policy, due(passed), now())
        passed = now()
        async with periodic_parts(app, chance.choice([1, 2, 3])):
            await asyncio.sleep(chance.choice([13, 40, 67, 251, 1803]))
        expected += due(passed)
        passed = now()
        await asyncio.sleep(chance.choice([13, 40, 67, 251, 1803]))
    keys = [str(task.unique_key) for task in app.management.find(name="tick", limit=5000)]
    slots = [datetime.fromisoformat(key.removeprefix("periodic/tick/")) for key in keys]
    assert sorted((slot - hour) / timedelta(minutes=1) for slot in slots) == expected
