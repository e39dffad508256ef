"""The observer of a real store counts waiting, running, ended and lost tasks, and silent nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from fairlead import App, NoRetry
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS
from fairlead.pipeline.incidents import store_observer as module
from fairlead.pipeline.incidents.detector import Observation
from fairlead.pipeline.incidents.store_observer import StoreObserver
from fairlead.testing import running, settled

pytestmark = pytest.mark.stores

NOTHING = Observation(queue="work", at=0, time=0)


class Reader:
    """A reader of observations, as in a worker."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "WAITS_US", 0)
        self.app = app
        self.history = SqlHistory(app.sql_store.database)
        self.observer = StoreObserver(app.sql_store, self.history, app.clock)
        self.arrived: Counter[str] = Counter()

    def look(self) -> dict[str, Observation]:
        read = self.app.store.database.read_now(self.observer.steps())
        found = {observation.queue: observation for observation in read}
        for observation in found.values():
            self.arrived.update(observation.keys)
        return found

    async def until(self, **wanted: int) -> Observation:
        """Read observations of the queue `work` until their sums match `done` and the other counts;
        return the last."""
        sums: Counter[str] = Counter()
        async with asyncio.timeout(60):
            while True:
                found = await asyncio.to_thread(lambda: self.look()["work"])
                sums.update({name: getattr(found, name) for name in wanted})
                if all(sums[name] == count for name, count in wanted.items()):
                    return found
                await asyncio.sleep(0.05)


@pytest.fixture
def reader(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    yield Reader(app, monkeypatch)


async def test_waiting_running_and_finished_tasks_are_counted_once(
    app: App, reader: Reader
) -> None:
    gate = asyncio.Event()

    @app.task(queue="work", retry=NoRetry())
    async def job(fails: bool) -> None:
        await gate.wait()
        assert not fails

    app.queue("work")
    async with running(app) as node:
        await settled(app, node)
    await asyncio.to_thread(reader.look)  # earlier tasks do not count as arrivals
    for n in range(6):
        job.options(fairness_key="ab"[n % 2]).submit(fails=n < 2)
    found = (await asyncio.to_thread(reader.look))["work"]
    assert found.waits_since is not None and found.waits_since <= app.clock.now()
    assert (
        found.done,
        found.failed,
        found.lost,
        found.silent,
        found.is_paused,
    ) == (0, 0, {}, [], False)
    async with running(app) as node:
        async with asyncio.timeout(60):
            while (
                found := (await asyncio.to_thread(reader.look))["work"]
            ).running != 6 or found.waits_since:
                await asyncio.sleep(0.05)
        assert found.claimed_at > 0
        gate.set()
        await settled(app, node)
        await reader.until(done=4, failed=2)
    # Each arrival counts once: while its task waits, or with its first run.
    async with asyncio.timeout(60):
        while reader.arrived.total() < 6:
            await asyncio.to_thread(reader.look)
    assert reader.arrived == {"a": 3, "b": 3}
    app.management.pause("work")
    assert (await asyncio.to_thread(reader.look))["work"].is_paused


async def test_tasks_of_a_node_without_heartbeats_do_not_count(app: App, reader: Reader) -> None:
    gate = asyncio.Event()

    @app.task(queue="work")
    async def job() -> None:
        await gate.wait()

    job.submit()
    async with running(app) as node:
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(reader.look)).get("work", NOTHING).running != 1:
                await asyncio.sleep(0.05)
        name = node.settings.name

        def silenced() -> Observation:
            long_ago = app.clock.now() - 60 * MICROS
            with app.store.database.transaction() as connection:
                mark = "%s" if app.store.database.dialect == "postgres" else "?"
                table = "heartbeats" if mark == "%s" else "nodes"
                statement = f"UPDATE fairlead_{table} SET heartbeat_at = {mark}"
                connection.execute(statement, (long_ago,))
            return reader.look()["work"]

        async with asyncio.timeout(60):
            while not (
                found := await asyncio.to_thread(silenced)
            ).silent:  # a heartbeat may come in between
                pass
        assert found.silent == [name]
        assert (found.running, found.claimed_at > 0) == (0, True)
        gate.set()
