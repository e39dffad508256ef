"""Periodic tasks in ordered queues whose log is apart from the periodic records: each slot runs once,
whatever happens between the append to the log and the advance of the record."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any

import pytest

from fairlead import App, Fixed
from fairlead.backends.sql.periodic import Advance
from fairlead.clock import MICROS, to_datetime
from fairlead.declare.current import current_task
from fairlead.declare.task import Draft
from fairlead.engine.periodic import PeriodicTasks
from fairlead.errors import StoreUnavailable
from fairlead.ports.task_log import Submit
from fairlead.submit.ordered import LOG_PATIENCE
from fairlead.testing import running
from tests.integration.test_periodic import part_of
from tests.memory_schedule import MemoryScheduleStore
from tests.memory_task_log import MemoryTaskLog
from tests.tiers import seeds
from tests.virtual_loop import VirtualLoop

pytestmark = pytest.mark.virtual_time

MINUTE = 60.0
SLOT = "slots"


class SlotLog(MemoryTaskLog):
    """A log in memory that counts what is appended."""

    def __init__(self, app: App) -> None:
        super().__init__(app.clock)
        self.appended: list[tuple[str, int]] = []
        """Ordering key and time of each entry."""
        self.is_out = False

    def append(self, entries: Sequence[Any]) -> Any:
        if self.is_out:
            failed: Future[None] = Future()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.call_soon(loop._working.discard, failed)  # no thread works on it: let time pass
            loop.call_later(30.0, failed.set_exception, StoreUnavailable("the log is out"))
            return failed
        for entry in entries:
            assert isinstance(entry, Submit)
            self.appended.append((str(entry.task.ordering_key), entry.task.run_at))
        return super().append(entries)


@pytest.fixture
def apps(sqlite_url: str) -> Iterator[Callable[[], App]]:
    """Yield a factory of applications on one SQLite file, with one log and one schedule in memory."""
    made: list[App] = []
    log: list[SlotLog] = []
    schedule = MemoryScheduleStore()

    def make() -> App:
        app = App(sqlite_url)
        app.queue(SLOT, kind="ordered", partitions=4)
        app.migrate()
        log.extend([] if log else [SlotLog(app)])
        app.connector.use(
            app.connections._replace(
                log=log[0],
                schedule=schedule,
                new_log=lambda: MemoryTaskLog(app.clock, beside=log[0]),
            )
        )
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def log_of(app: App) -> SlotLog:
    log = app.connections.log
    assert isinstance(log, SlotLog)
    return log


async def at_second(app: App, second: int) -> None:
    """Sleep until this second of the next hour."""
    now = to_datetime(app.clock.now())
    at = now.replace(minute=0, second=second, microsecond=0) + timedelta(hours=1)
    await asyncio.sleep((at - now).total_seconds())


class Killed(BaseException):
    """The process ended here."""


class CrashingSubmitter:
    """The submitter of a process that may be killed before or after each step of a submit."""

    def __init__(self, app: App, is_killed: Callable[[str], bool], pauses: Iterator[float]) -> None:
        """`is_killed`: whether the process ends at this point. `pauses`: seconds before it."""
        self._submitter = app.submitter
        self._is_killed = is_killed
        self._pauses = pauses

    async def submit_slots(self, drafts: Sequence[Draft], advance: Advance) -> bool:
        plan = self._submitter._slots(drafts, advance)
        step: Any = None
        outcome = None
        try:
            while True:
                step = plan.send(outcome)
                await self._reach(f"before {type(step).__name__}")
                outcome = await step.in_loop()
                await self._reach(f"after {type(step).__name__}")
        except StopIteration as stop:
            return bool(stop.value)

    async def _reach(self, point: str) -> None:
        await asyncio.sleep(next(self._pauses))
        if self._is_killed(point):
            raise Killed


async def run_until_killed(part: PeriodicTasks) -> None:
    with contextlib.suppress(Killed):
        await part.run()


def ticking(app: App, periodic: bool = True, **options: Any) -> list[tuple[datetime, str]]:
    """Declare the task `tick` in the ordered queue; return its runs, with the ids of the tasks."""
    runs: list[tuple[datetime, str]] = []

    @app.task(queue=SLOT)
    async def tick(slot: datetime) -> None:
        task = current_task()
        assert task is not None
        runs.append((slot, task.id))

    if periodic:
        app.periodic("* * * * *", **options)(tick)
    return runs


def slots_between(first: int, last: int) -> list[datetime]:
    """Return the minutes after `first` and up to `last` (microseconds since the epoch)."""
    minute = round(MINUTE * MICROS)
    return [to_datetime(at) for at in range((first // minute + 1) * minute, last + 1, minute)]


@pytest.mark.parametrize("seed", seeds(2))
async def test_kills_between_the_append_and_the_advance_run_each_slot_once(
    apps: Callable[[], App], seed: int
) -> None:
    """Processes are killed before and after the wait for the append, and the write of the record."""
    chance = random.Random(seed)
    app, worker = apps(), apps()
    ticking(app, catch_up="all", ordering_key=chance.choice((None, "mine")))
    done: list[datetime] = []

    @worker.task(queue=SLOT, retry=Fixed(10.0, max_attempts=1000))
    async def tick(slot: datetime) -> None:
        await asyncio.sleep(chance.choice((0.0, 1.0, 90.0)))
        if chance.random() < 0.3:
            raise OSError("try again")
        done.append(slot)

    await at_second(app, 30)
    await part_of(app, "first").round()
    (known,) = app.management.periodic.list()
    pauses = iter(lambda: chance.choice((0.0, 0.01, 1.0)), None)
    for life in range(6):
        submitter = CrashingSubmitter(app, lambda _: chance.random() < 0.15, pauses)
        parts = [
            asyncio.create_task(
                run_until_killed(part_of(app, f"{life}/{n}", submitter, chance.choice((0.0, 2.0))))
            )
            for n in range(chance.choice((1, 2, 3)))
        ]
        async with running(worker):
            await asyncio.sleep(chance.choice((40.0, 170.0, 400.0)))
        for each in parts:
            each.cancel()
        await asyncio.wait(parts)
    await part_of(app, "last").round()
    (last,) = app.management.periodic.list()
    slots = slots_between(known.record.passed_at, last.record.passed_at)
    async with running(worker):
        async with asyncio.timeout(3 * 3600.0):
            while len(done) < len(slots):
                await asyncio.sleep(MINUTE)
        await asyncio.sleep(10 * MINUTE)
    assert done == slots
    schedule = worker.connections.schedule
    assert isinstance(schedule, MemoryScheduleStore)
    assert len({task_id for task_id, _, _ in schedule.history}) == len(slots)


async def test_nodes_append_a_slot_once_unless_the_node_that_declared_it_is_gone(
    apps: Callable[[], App],
) -> None:
    app, worker = apps(), apps()
    ticking(app)
    runs = ticking(worker, periodic=False)
    await at_second(app, 30)
    parts = [
        asyncio.create_task(part_of(app, f"{n}", patience=LOG_PATIENCE).run()) for n in range(5)
    ]
    async with running(worker):
        await asyncio.sleep(3 * MINUTE)
        assert [key for key, _ in log_of(app).appended] == ["periodic/tick"] * 3
        (status,) = app.management.periodic.list()
        parts[int(status.record.declared_by)].cancel()
        await asyncio.sleep(2 * MINUTE)
        assert [slot.minute for slot, _ in runs] == [1, 2, 3, 4, 5]
    for each in parts:
        each.cancel()
    await asyncio.wait(parts)


async def test_an_outage_of_the_log_delays_no_periodic_task_of_another_queue(
    apps: Callable[[], App],
) -> None:
    app = apps()
    ordered = ticking(app, catch_up="all")
    others: list[datetime] = []
    delays: list[float] = []

    @app.periodic("* * * * *")
    async def other(slot: datetime) -> None:
        others.append(slot)
        delays.append((to_datetime(app.clock.now()) - slot).total_seconds())

    await at_second(app, 30)
    log_of(app).is_out = True
    async with running(app):
        await asyncio.sleep(2.5 * MINUTE)
        assert [slot.minute for slot in others] == [1, 2]
        assert max(delays) < 1.0
        assert ordered == []
        log_of(app).is_out = False
        await asyncio.sleep(40)
        assert [slot.minute for slot, _ in ordered] == [1, 2, 3]
