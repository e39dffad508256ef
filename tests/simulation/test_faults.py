"""A node that reads again which tasks it holds, after the response of a claim was lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, Fixed
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


class Watched(SqliteTaskStore):
    """A store that records when a node reads its held tasks, and calls back before it returns."""

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.looks = 0
        self.looked = asyncio.Condition()
        self.handed_back: list[Any] = []
        self.first_look: Callable[[], None] = lambda: None
        self.looked_first: Callable[[], Awaitable[None]] | None = None
        self.claiming: Callable[..., Awaitable[None]] | None = None
        self.claimed: Callable[[], Awaitable[None]] | None = None
        self.completed: Callable[[], Awaitable[None]] | None = None
        self.checking: Callable[[], Awaitable[None]] | None = None
        self.checked: Callable[[], Awaitable[None]] | None = None

    async def held(self, *arguments: Any) -> Any:
        found = await SqliteTaskStore.held(self, *arguments)
        if not self.looks:
            self.first_look()
            if self.looked_first is not None:
                await self.looked_first()
        async with self.looked:
            self.looks += 1
            self.looked.notify_all()
        return found

    async def hand_back(self, node: str, held: Any) -> Any:
        self.handed_back += held
        return await SqliteTaskStore.hand_back(self, node, held)

    async def claim(self, *arguments: Any) -> Any:
        if self.claiming is not None:
            await self.claiming(*arguments)
        found = await SqliteTaskStore.claim(self, *arguments)
        if self.claimed is not None:
            await self.claimed()
        return found

    async def complete(self, *arguments: Any) -> Any:
        found = await SqliteTaskStore.complete(self, *arguments)
        if self.completed is not None:
            await self.completed()
        return found

    async def still_held(self, *arguments: Any, **noted: bool) -> Any:
        if self.checking is not None:
            await self.checking()
        found = await SqliteTaskStore.still_held(self, *arguments, **noted)
        if self.checked is not None:
            await self.checked()
        return found

    async def until(self, looks: int) -> None:
        """Wait for this number of reads. By then, the node has handled the previous read."""
        async with self.looked:
            await asyncio.wait_for(self.looked.wait_for(lambda: self.looks >= looks), 60)  # timeout


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[App, Watched]]:
    clock = HastyClock()
    app = App(f"sqlite:///{tmp_path}/tasks.db", clock=clock)
    connections = connect(Settings(app.url), clock, {}, app.observer.counted)
    store = Watched(connections.store.database)
    app.connector.use(connections._replace(cluster=store))
    yield app, store
    app.close()


async def test_a_claim_lost_while_the_node_reconciles_an_earlier_one_is_reconciled_too(
    watched: tuple[App, Watched],
) -> None:
    app, store = watched
    async with running(app) as node:
        store.first_look = node.parts.on_claim_unknown  # this read does not contain the claim
        node.parts.on_claim_unknown()
        await store.until(looks=2)


async def test_a_claim_under_way_while_the_node_reconciles_a_lost_one_is_not_handed_back(
    watched: tuple[App, Watched],
) -> None:
    app, store = watched
    runs: Counter[int] = Counter()

    @app.task
    async def work(n: int) -> None:
        runs[n] += 1

    async with running(app) as node:

        async def answer_late() -> None:
            for looks in (store.looks + 1, store.looks + 2):
                node.parts.on_claim_unknown()  # for an earlier claim
                await store.until(looks)

        store.claimed = answer_late
        handle = work.submit(n=1)
        await settled(app, node, timeout=60)
    assert store.handed_back == [] and runs == {1: 1}
    assert [attempt.outcome for attempt in app.management.attempts(handle.id)] == ["done"]


async def test_a_late_check_of_an_ended_run_does_not_stop_the_next_run_of_its_task(
    watched: tuple[App, Watched],
) -> None:
    app, store = watched
    is_checking, has_ended, runs_again, is_over = (asyncio.Event() for _ in range(4))
    runs: Counter[int] = Counter()

    @app.task(retry=Fixed(0.01, 2))
    async def work(n: int) -> None:
        runs[n] += 1
        if runs[n] == 1:
            node.parts.membership.poke()
            await is_checking.wait()
            raise ValueError("as wanted")
        runs_again.set()
        await is_over.wait()

    async def checking() -> None:
        is_checking.set()
        await has_ended.wait()

    async def completed() -> None:
        has_ended.set()

    async def checked() -> None:
        store.checked = None
        await runs_again.wait()
        asyncio.get_running_loop().call_later(0.1, is_over.set)

    store.checking, store.completed, store.checked = checking, completed, checked
    async with running(app) as node:
        handle = work.submit(n=1)
        await settled(app, node, timeout=60)
    attempts = app.management.attempts(handle.id)
    assert [attempt.outcome for attempt in attempts] == ["retried", "done"]
    assert runs == {1: 2}


async def test_a_lost_claim_is_found_while_the_end_of_an_earlier_run_is_not_confirmed(
    watched: tuple[App, Watched],
) -> None:
    app, store = watched
    runs: Counter[int] = Counter()
    is_lost = asyncio.Event()

    @app.task(retry=Fixed(0.01, 2))
    async def work(n: int) -> None:
        runs[n] += 1
        if runs[n] == 1:
            raise ValueError("as wanted")

    async def completed() -> None:
        if not store.looks:
            raise StoreUnavailable("the response is lost, as wanted")

    async def claimed() -> None:
        if runs and not is_lost.is_set():
            is_lost.set()
            raise StoreUnavailable("the response is lost, as wanted")

    store.completed, store.claimed = completed, claimed
    async with running(app) as node:
        handle = work.submit(n=1)
        await settled(app, node, timeout=60)
    assert is_lost.is_set()
    assert [each.outcome for each in app.management.attempts(handle.id)] == ["retried", "done"]


async def test_a_claim_that_the_store_makes_after_the_node_has_looked_is_found_later(
    watched: tuple[App, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "LATE_SECONDS", 0.3)
    app, store = watched
    late, is_made = list[Any](), asyncio.Event()

    @app.task
    async def work(n: int) -> None: ...

    async def claiming(*arguments: Any) -> None:
        if not late:
            late.extend(arguments)
            raise StoreUnavailable("the connection broke, as wanted")
        await is_made.wait()

    async def looked_first() -> None:
        assert len(await SqliteTaskStore.claim(store, *late)) == 1
        is_made.set()

    store.claiming, store.looked_first = claiming, looked_first
    async with running(app) as node:
        handle = work.submit(n=1)
        await settled(app, node, timeout=10)
    assert [each.outcome for each in app.management.attempts(handle.id)] == ["done"]
