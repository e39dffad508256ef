"""Steps of the wall clock, as a time server or a suspended machine makes them, change no time limit
of a run and make no living node look dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead import App, Incident, NoRetry, State
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.ports.statements import Steps
from fairlead.testing import running, settled
from tests.virtual_loop import VirtualLoop

pytestmark = [pytest.mark.sqlite, pytest.mark.virtual_time]

STEP = 6
"""Seconds."""


def step_wall_clock(seconds: int) -> None:
    """Set the wall clock forward, or back."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.clock._began += seconds * MICROS


@pytest.mark.parametrize("seconds", [-STEP, STEP])
async def test_a_run_times_out_after_its_timeout_when_the_wall_clock_steps(
    app: App, seconds: int
) -> None:
    @app.task(timeout=10, retry=NoRetry())
    async def work(duration: float) -> None:
        await asyncio.sleep(duration)

    short, long = work.submit(duration=8), work.submit(duration=13)
    async with running(app) as node:
        await asyncio.sleep(5)
        step_wall_clock(seconds)
        await settled(app, node)
    assert (short.state(), long.state()) == (State.DONE, State.ERROR)
    assert [each.outcome for each in app.management.attempts(long.id)] == ["timed_out"]


async def test_a_run_is_not_stuck_because_the_wall_clock_stepped(app: App) -> None:
    incidents: list[Incident] = []
    app.on_incident = incidents.append

    @app.task
    async def work() -> None:
        await asyncio.sleep(59)

    handle = work.submit()
    async with running(app, stuck_seconds=60) as node:
        await asyncio.sleep(20)
        step_wall_clock(STEP)
        await settled(app, node, 600)
        assert await app.store.incidents.counts() == {}
    assert handle.state() == State.DONE
    assert incidents == []


@pytest.mark.parametrize("seconds", [9, 3600, -9, -3600])
async def test_tasks_run_once_and_go_on_although_the_clock_of_the_server_steps(
    app: App, sqlite_url: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, heartbeats and leases have times of the server."""
    server = {"ahead": 0}

    def read_clock(self: Any, now: int = 0) -> Steps[int]:
        yield from ()
        return SYSTEM_CLOCK.now() + server["ahead"] * MICROS

    monkeypatch.setattr(SqlTaskStore, "shared_clock", read_clock)
    monkeypatch.setattr(DatabaseCoordinator, "lease_clock", read_clock)
    runs: list[int] = []

    async def work(n: int, duration: float) -> None:
        runs.append(n)
        await asyncio.sleep(duration)

    other = App(sqlite_url)
    other.task(work)
    task = app.task(work)
    async with running(app, concurrency=4) as node, running(other, concurrency=4):
        long = [task.submit(n=n, duration=60) for n in range(6)]
        await asyncio.sleep(20)
        server["ahead"] = seconds
        await asyncio.sleep(3)
        later = task.submit(n=6, duration=0)
        await asyncio.sleep(12)
        assert later.state() == State.DONE, "partitions have owners again"
        await settled(app, node, 600)
    assert {handle.state() for handle in long} == {State.DONE}
    assert sorted(runs) == list(range(7))
