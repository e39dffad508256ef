"""Steps of the wall clock, as a time server or a suspended machine makes them, change no time limit
of a run and make no living node look dead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fairlead import App, Incident, NoRetry, State
from fairlead.clock import MICROS
from fairlead.testing import running, settled
from tests.virtual_loop import VirtualLoop

pytestmark = pytest.mark.virtual_time

STEP = 6
"""Seconds."""


@pytest.fixture
def app(sqlite_url: str) -> Iterator[App]:
    """Yield an application on SQLite, for minutes of virtual time."""
    application = App(sqlite_url)
    application.migrate()
    yield application
    application.close()


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


@pytest.mark.parametrize("seconds", [9, 3600])
async def test_a_task_runs_once_although_the_wall_clock_steps(app: App, seconds: int) -> None:
    runs: list[int] = []

    @app.task
    async def work() -> None:
        runs.append(1)
        await asyncio.sleep(100)

    handle = work.submit()
    async with running(app) as node:
        await asyncio.sleep(20)
        step_wall_clock(seconds)
        await settled(app, node, 600)
    assert handle.state() == State.DONE
    assert len(runs) == 1
