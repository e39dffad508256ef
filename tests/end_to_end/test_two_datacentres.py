"""An ordered queue whose schedule has a copy in each of two datacentres, which are killed and started
again one after the other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("cassandra", reason="the driver is missing: pip install 'fairlead[cassandra]'")

from fairlead import App  # noqa: E402
from fairlead.clock import MICROS, SystemClock  # noqa: E402
from fairlead.testing import running, settled  # noqa: E402
from services.cassandra import TwoDatacentres  # noqa: E402
from tests.conftest import own_server  # noqa: E402

SOON = 300.0
"""Timeout of every wait, in seconds."""

KEYS = 20
JUST_BEFORE = 2.0
"""Seconds before a kill in which a write may reach only the killed datacentre: a task whose end it
was runs again, and a task that was new runs late, after later ones of its key."""

clock = SystemClock()


@pytest.fixture
def datacentres() -> Iterator[TwoDatacentres]:
    yield from own_server(TwoDatacentres)


class Reminders:
    """Numbered tasks of many keys, submitted continuously, and a record of their runs."""

    def __init__(self, folder: Path, schedule: str) -> None:
        self.app = App(f"sqlite:///{folder / 'tasks.db'}", schedule=schedule)
        self.app.queue("reminders", kind="ordered", partitions=4, look_ahead=5.0)
        self.submitted = 0
        self.submitted_at: dict[int, float] = {}
        self.ran_at: dict[int, list[float]] = defaultdict(list)
        self.order: dict[int, list[int]] = defaultdict(list)
        self.first_at: dict[int, float] = {}
        self.changed = asyncio.Event()
        self.killed_at: list[float] = []
        self.is_enough = False

        @self.app.task(queue="reminders")
        async def remind(n: int) -> None:
            if n not in self.first_at:
                self.first_at[n] = clock.monotonic()
                self.order[n % KEYS].append(n)
            self.ran_at[n].append(clock.monotonic())
            self.changed.set()

        self.remind = remind

    async def submit(self) -> None:
        """Submit 20 tasks a second, one key after another, due up to 8 s later."""
        while not self.is_enough:
            n = self.submitted
            ahead = n % 3 * 4 * MICROS if n % KEYS < 10 else 0
            self.submitted += 1
            self.submitted_at[n] = clock.monotonic()
            options = (
                {"run_at": datetime.fromtimestamp((clock.now() + ahead) / MICROS, UTC)}
                if ahead
                else {}
            )
            await asyncio.to_thread(
                self.remind.options(ordering_key=f"k{n % KEYS}", **options).submit, n=n
            )
            await asyncio.sleep(0.04)

    async def until_next(self, count: int = 100) -> None:
        """Wait until the next `count` tasks to be submitted have run."""
        await self.until(self.submitted, self.submitted + count)

    async def until(self, first: int, last: int) -> None:
        """Wait until the tasks from `first` up to `last` have run."""
        async with asyncio.timeout(SOON):
            while not set(range(first, last)) <= self.first_at.keys():
                self.changed.clear()
                await self.changed.wait()

    def is_just_before_a_kill(self, at: float) -> bool:
        return any(0 <= killed_at - at < JUST_BEFORE for killed_at in self.killed_at)

    def kill(self, server: object) -> None:
        self.killed_at.append(clock.monotonic())
        server.crash()  # type: ignore[attr-defined]


@pytest.mark.nightly("an outage")
async def test_every_task_runs_while_either_datacentre_is_killed_and_comes_back(
    datacentres: TwoDatacentres, tmp_path: Path
) -> None:
    reminders = Reminders(tmp_path, datacentres.url_of("reminders"))
    app = reminders.app
    await asyncio.to_thread(app.migrate)
    async with running(app, drain=SOON) as node:
        submitting = asyncio.create_task(reminders.submit())
        await reminders.until_next()
        reminders.kill(datacentres.dc1)  # the datacentre of the worker
        await reminders.until_next()
        await asyncio.to_thread(datacentres.dc1.start)
        await reminders.until_next()
        while any(not owner.is_whole for owner in app.connections.schedule._owners.values()):
            await asyncio.sleep(0.1)  # the partitions are reloaded without an event for the test
        reminders.kill(datacentres.dc2)
        await reminders.until_next()
        await asyncio.to_thread(datacentres.dc2.start)
        await reminders.until_next()
        reminders.is_enough = True
        await submitting
        await reminders.until(0, reminders.submitted)  # nothing is lost
        await settled(app, node, SOON)
    app.close()
    twice = [n for n, runs in reminders.ran_at.items() if len(runs) > 1]
    for key in range(10, KEYS):  # their tasks were due at once
        known = [
            n
            for n in reminders.order[key]
            if not reminders.is_just_before_a_kill(reminders.submitted_at[n])
        ]
        assert known == sorted(known), f"tasks of k{key} ran in the wrong order"
    print(f"{reminders.submitted} tasks, {len(twice)} of them ran twice")
    for n in twice:
        after = [
            [round(at - kill, 2) for at in reminders.ran_at[n]] for kill in reminders.killed_at
        ]
        assert reminders.is_just_before_a_kill(reminders.first_at[n]), (
            f"{n} ran twice; seconds from each kill to its runs: {after}"
        )
