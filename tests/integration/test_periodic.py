"""Periodic tasks: each slot after the first registration runs once, as the catch-up policy says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from fairlead import App
from fairlead.clock import to_datetime
from fairlead.testing import running

pytestmark = pytest.mark.virtual_time

MINUTE, HOUR = 60.0, 3600.0


@pytest.fixture
def app(sqlite_url: str) -> Iterator[App]:
    """Return an application on SQLite, for hours of virtual time; the contract of periodic tasks
    covers the other stores."""
    application = App(sqlite_url)
    application.migrate()
    yield application
    application.close()


def seconds_to(app: App, minute: int, second: float = 0) -> float:
    """Return the seconds until this minute of the next hour."""
    now = to_datetime(app.clock.now())
    at = now.replace(minute=minute, second=0, microsecond=0) + timedelta(hours=1, seconds=second)
    return (at - now).total_seconds()


async def at(app: App, minute: int, second: float = 0) -> None:
    """Sleep until this minute of the next hour."""
    await asyncio.sleep(seconds_to(app, minute, second))


def minutes(slots: list[datetime]) -> list[int]:
    return [slot.minute for slot in slots]


def ticking(url: str, cron: str, name: str = "tick", **options: Any) -> tuple[App, list[datetime]]:
    """Return an application with one periodic task, and the slots that it runs."""
    app, slots = App(url), []

    # A queue for each name: a node does not yet leave tasks of names it does not know to others.
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


@pytest.mark.smoke
async def test_the_latest_slot_of_an_outage_runs_when_a_worker_is_back(app: App) -> None:
    app, slots = ticking(app.url, "0 * * * *")
    await at(app, 58)
    async with nodes(app):
        await asyncio.sleep(MINUTE)
    await asyncio.sleep(2 * HOUR + 10 * MINUTE)
    async with nodes(app):
        await asyncio.sleep(MINUTE)
    now = to_datetime(app.clock.now())
    assert slots == [now.replace(minute=0, second=0, microsecond=0)]


@pytest.mark.smoke
async def test_a_slot_from_before_the_first_registration_does_not_run(app: App) -> None:
    app, slots = ticking(app.url, "0 * * * *")
    await at(app, 3)
    async with nodes(app):
        await asyncio.sleep(10 * MINUTE)
    assert slots == []
