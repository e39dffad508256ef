"""A claim that the store makes after its node has read again which tasks it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.clock import SystemClock
from fairlead.config import Settings
from fairlead.connections import connect
from fairlead.engine import reconciler
from fairlead.errors import StoreUnavailable
from fairlead.testing import running, settled


class HastyClock(SystemClock):
    """A clock whose pauses last a hundredth of the requested time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


class Late(SqliteTaskStore):
    """A store that lets a test act before a claim and after a first read of the held tasks."""

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.claiming: Callable[..., Awaitable[None]]
        self.looked: Callable[[], Awaitable[None]] | None = None

    async def held(self, *arguments: Any) -> Any:
        found = await SqliteTaskStore.held(self, *arguments)
        if self.looked is not None:
            looked, self.looked = self.looked, None
            await looked()
        return found

    async def claim(self, *arguments: Any) -> Any:
        await self.claiming(*arguments)
        return await SqliteTaskStore.claim(self, *arguments)


@pytest.fixture
def late_store(tmp_path: Path) -> Iterator[tuple[App, Late]]:
    clock = HastyClock()
    app = App(f"sqlite:///{tmp_path}/tasks.db", clock=clock)
    connections = connect(Settings(app.url), clock, {}, app.observer.counted)
    store = Late(connections.store.database)
    app.connector.use(connections._replace(cluster=store))
    yield app, store
    app.close()


async def test_a_claim_that_the_store_makes_after_the_node_has_looked_is_found_later(
    late_store: tuple[App, Late], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "LATE_SECONDS", 0.3)
    app, store = late_store
    late, is_made = list[Any](), asyncio.Event()

    @app.task
    async def work(n: int) -> None: ...

    async def claiming(*arguments: Any) -> None:
        if not late:
            late.extend(arguments)
            raise StoreUnavailable("the connection broke, as wanted")
        await is_made.wait()

    async def looked() -> None:
        assert len(await SqliteTaskStore.claim(store, *late)) == 1
        is_made.set()

    store.claiming, store.looked = claiming, looked
    async with running(app) as node:
        handle = work.submit(n=1)
        await settled(app, node, timeout=10)
    assert [each.outcome for each in app.management.attempts(handle.id)] == ["done"]
