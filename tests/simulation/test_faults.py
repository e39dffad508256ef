"""The engine over a store that fails before a commit, or after it, so that only the response is
lost.

Each seed is one schedule of faults; a failure prints its seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fairlead import App, State
from fairlead.backends.sqlite.backlog import SqliteBacklogStore
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.clock import SystemClock
from fairlead.config import Settings
from fairlead.connections import connect
from fairlead.errors import StoreUnavailable
from fairlead.testing import running, settled
from tests.tiers import seeds

T = TypeVar("T")
TASKS = 120


class HastyClock(SystemClock):
    """A clock whose pauses last a hundredth of the requested time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


class Faults:
    """Faults for a share of the calls, half of them after the work was done."""

    def __init__(self, seed: int, share: float) -> None:
        self.random = random.Random(seed)
        self.share = share
        self.lost_answers: Counter[str] = Counter()

    async def wrap(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        fate = self.random.random()
        if fate < self.share / 2:
            raise StoreUnavailable(f"{what}: not reached")
        result = await call()
        if fate < self.share:
            self.lost_answers[what] += 1
            raise StoreUnavailable(f"{what}: the answer was lost")
        return result


class FaultyStore(SqliteTaskStore):
    """A SQLite store whose claims, completions and hand-backs fail."""

    faults: Faults

    async def claim(self, *arguments: Any) -> Any:
        return await self.faults.wrap("claim", lambda: SqliteTaskStore.claim(self, *arguments))

    async def complete(self, *arguments: Any) -> Any:
        return await self.faults.wrap(
            "complete", lambda: SqliteTaskStore.complete(self, *arguments)
        )

    async def hand_back(self, *arguments: Any) -> Any:
        return await self.faults.wrap(
            "hand_back", lambda: SqliteTaskStore.hand_back(self, *arguments)
        )


class FaultyBacklog(SqliteBacklogStore):
    """A SQLite backlog store whose calls fail."""

    faults: Faults

    async def take_over(self, *arguments: Any) -> Any:
        return await self.faults.wrap(
            "take_over", lambda: SqliteBacklogStore.take_over(self, *arguments)
        )

    async def write(self, *arguments: Any) -> None:
        await self.faults.wrap("write", lambda: SqliteBacklogStore.write(self, *arguments))

    async def read_above(self, *arguments: Any) -> Any:
        return await self.faults.wrap(
            "read_above", lambda: SqliteBacklogStore.read_above(self, *arguments)
        )

    async def delete_through(self, *arguments: Any) -> None:
        await self.faults.wrap(
            "delete_through", lambda: SqliteBacklogStore.delete_through(self, *arguments)
        )

    async def levelled(self, *arguments: Any) -> Any:
        return await self.faults.wrap(
            "levelled", lambda: SqliteBacklogStore.levelled(self, *arguments)
        )


@pytest.mark.parametrize("order", ["fifo", "fair"])
@pytest.mark.parametrize("seed", seeds(12, few=1))
async def test_every_task_runs_once_whatever_responses_of_the_store_are_lost(
    seed: int, order: str, tmp_path: Path
) -> None:
    clock = HastyClock()
    app = App(f"sqlite:///{tmp_path}/tasks.db", clock=clock)
    connections = connect(Settings(app.url), clock, {}, app.observer.counted)
    store = FaultyStore(connections.store.database)  # type: ignore[arg-type]
    backlog = FaultyBacklog(store)
    store.faults = backlog.faults = Faults(seed, share=0.3)
    connections.channel._store = store  # type: ignore[attr-defined]
    app.connector.use(connections._replace(cluster=store, backlog=backlog))
    app.queue("default", order=order, partitions=1)
    runs: Counter[int] = Counter()

    @app.task
    async def work(n: int) -> None:
        runs[n] += 1
        if n % 3 == 0:
            await asyncio.sleep(0.001)

    chance = random.Random(seed)
    handles = []
    async with running(app, concurrency=20, look_ahead=chance.choice([15, 1000])) as node:
        for start in range(0, TASKS, 20):
            key = work.options(
                fairness_key=f"k{chance.randrange(5)}",
                ordering_key=chance.choice([None, None, "a", "b"]),
            )
            handles += key.submit_many([{"n": n} for n in range(start, start + 20)])
            await asyncio.sleep(chance.random() / 50)
        await settled(app, node, timeout=60)
        async with asyncio.timeout(10):  # wait until doubled triggers are refused
            while (node.parts.context.ledger.room, len(node.parts.context.table)) != (
                20,
                0,
            ) or node.parts.intake._known:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert set(node.parts.intake._queued.values()) <= {0}, f"seed {seed}"
    assert set(runs) == set(range(TASKS)), f"seed {seed}"
    for handle in handles:
        assert handle.state() == State.DONE, f"seed {seed}"
        done = [
            attempt for attempt in app.management.attempts(handle.id) if attempt.outcome == "done"
        ]
        assert len(done) == 1, f"seed {seed}"
    # No fault repeats a run: the node hands back a claim without a response before it runs, and a
    # completion without a response is final.
    assert set(runs.values()) == {1}, f"seed {seed}"
    assert sum(store.faults.lost_answers.values()) > 0
    app.close()


class Watched(SqliteTaskStore):
    """A store that records when a node reads its held tasks, and calls back before it returns."""

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.looks = 0
        self.looked = asyncio.Condition()
        self.handed_back: list[Any] = []
        self.first_look: Callable[[], None] = lambda: None
        self.claimed: Callable[[], Awaitable[None]] | None = None

    async def held(self, *arguments: Any) -> Any:
        found = await SqliteTaskStore.held(self, *arguments)
        if not self.looks:
            self.first_look()
        async with self.looked:
            self.looks += 1
            self.looked.notify_all()
        return found

    async def hand_back(self, node: str, held: Any) -> Any:
        self.handed_back += held
        return await SqliteTaskStore.hand_back(self, node, held)

    async def claim(self, *arguments: Any) -> Any:
        found = await SqliteTaskStore.claim(self, *arguments)
        if self.claimed is not None:
            await self.claimed()
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
