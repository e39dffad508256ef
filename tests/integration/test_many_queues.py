"""Nodes that serve many queues: the work of a round depends on what changed, not on the queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sql import drivers
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.engine import ownership
from fairlead.engine.fair_partition import FairPartition
from fairlead.engine.node import Node
from fairlead.errors import StoreUnavailable
from fairlead.ports.statements import Statement, Steps
from fairlead.testing import running

FEW, MANY = 20, 800
TRIES = 10
"""Measured rounds; other parts of the node may work during some of them."""


class Work:
    """Counts the work of the database: instructions of SQLite, or rows that PostgreSQL read or
    changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.database = 0

    def watch(self, app: App) -> None:
        if app.url.startswith("sqlite"):
            self._watch_sqlite()
        else:
            self._watch_postgres(app.store.database)

    def _watch_sqlite(self) -> None:
        made = drivers._sqlite3

        def tick() -> None:
            self.database += 1

        def counting(connection: Any) -> Any:
            connection.set_progress_handler(tick, 1)
            return made(connection)

        self._monkeypatch.setattr(drivers, "_sqlite3", counting)

    def _watch_postgres(self, database: Any) -> None:
        run = database.run_async

        touched = Statement(
            "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch + n_tup_ins + n_tup_upd), 0)"
            " FROM pg_stat_xact_user_tables"
        )

        def counted(steps: Steps[Any]) -> Steps[Any]:
            before = (yield touched)[0][0]  # of transactions not yet reported
            result = yield from steps
            self.database += int((yield touched)[0][0] - before)
            return result

        async def counting(steps: Steps[Any], durable: bool = True) -> Any:
            return await run(counted(steps), durable)

        self._monkeypatch.setattr(database, "run_async", counting)
        self._monkeypatch.setattr(database, "read", counting)


def declared(url: str, queues: int) -> App:
    app = App(url)
    for number in range(queues):
        app.queue(f"queue-{number}")
    app.migrate()
    return app


async def until(is_so: Callable[[], bool], timeout: float = 60.0) -> None:
    async with asyncio.timeout(timeout):
        while not is_so():
            await asyncio.sleep(0.05)  # no event reports the ownership of another node


async def until_settled(node: Node, owned: int) -> None:
    await until(lambda: len(node.parts.ownership.owned) == owned)
    for _ in range(3):
        await one_round(node)


async def one_round(node: Node) -> None:
    await node.parts.membership.beat()
    await node.parts.ownership.renew()


async def work_of_a_round(
    url: str, queues: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, float]:
    """Return the least work of the database, and the least seconds of processor time of the loop,
    in a round without changes. No calls are counted, because Python 3.11 may repeat an await for
    ever while a trace or a profile function is set."""
    app = declared(url, queues)
    async with running(app) as node:
        await until_settled(node, queues)
        found: list[tuple[int, float]] = []
        with monkeypatch.context() as patch:
            work = Work(patch)
            work.watch(app)
            for _ in range(TRIES):
                work.database, began = 0, thread_time()
                await one_round(node)
                found.append((work.database, thread_time() - began))
    app.close()
    return min(database for database, _ in found), min(loop for _, loop in found)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_round_without_changes_costs_the_same_for_few_and_for_many_queues(
    store: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def new_url(queues: int) -> str:
        if store == "sqlite":
            return f"sqlite:///{tmp_path / str(queues)}.db"
        return str(request.getfixturevalue("postgres_server").create_database())

    few, many = [await work_of_a_round(new_url(n), n, monkeypatch) for n in (FEW, MANY)]
    assert 0 < many[0] < 1.5 * few[0]
    assert many[1] < MANY / FEW / 4 * few[1]


async def test_after_a_change_only_the_shares_of_its_queue_are_computed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = declared(sqlite_url, FEW)
    async with running(app) as node:
        await until_settled(node, FEW)
        computed: Counter[str] = Counter()
        shares = node.parts.ownership.shares
        wanted = shares.wanted
        monkeypatch.setattr(
            shares,
            "wanted",
            lambda queue, *state: computed.update([queue]) or wanted(queue, *state),
        )
        await node.parts.context.ports.coordinator.release(
            ["partition/queue-7/0"], node.settings.name
        )
        await one_round(node)
        await until_settled(node, FEW)
    app.close()
    assert computed.keys() == {"queue-7"}


async def test_many_partitions_are_acquired_in_pieces_and_each_begins_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "MOST_AT_ONCE", 100)
    queues = 250
    asked: list[int] = []
    begun: Counter[object] = Counter()
    acquire, positions = DatabaseCoordinator.acquire, FairPartition.positions

    async def acquiring(self: Any, names: Sequence[str], owner: str, ttl: float) -> Any:
        asked.append(len(names))
        return await acquire(self, names, owner, ttl)

    def counting(self: FairPartition) -> dict[int, int]:
        begun[self.key] += 1
        return positions(self)

    monkeypatch.setattr(DatabaseCoordinator, "acquire", acquiring)
    monkeypatch.setattr(FairPartition, "positions", counting)
    app = declared(sqlite_url, queues)
    async with running(app) as node:
        await until(lambda: len(begun) == queues)
        assert len(node.parts.ownership.owned) == queues
    app.close()
    assert max(asked) <= 100
    assert set(begun.values()) == {1}


async def test_two_nodes_share_many_queues_and_the_rest_takes_over_those_of_one_that_leaves(
    sqlite_url: str,
) -> None:
    app, other = (declared(sqlite_url, MANY) for _ in range(2))
    async with running(app) as first:
        await until_settled(first, MANY)
        async with running(other) as second:
            owned = [node.parts.ownership for node in (first, second)]
            await until(
                lambda: (
                    sum(len(each.owned) for each in owned) == MANY
                    and min(len(each.owned) for each in owned) > MANY / 3
                )
            )
            assert not owned[0].owned & owned[1].owned
        await until_settled(first, MANY)
    app.close()
    other.close()


async def test_a_node_that_leaves_while_it_acquires_keeps_no_lease(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = declared(sqlite_url, FEW)
    async with running(app) as node:
        await until_settled(node, FEW)
        parts, coordinator = node.parts, node.parts.context.ports.coordinator
        acquire = coordinator.acquire

        async def acquiring(names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
            won = await acquire(names, owner, ttl)
            await parts.ownership.release_all()
            return won

        monkeypatch.setattr(coordinator, "acquire", acquiring)
        await coordinator.release(["partition/queue-7/0"], node.settings.name)
        await until(lambda: not parts.ownership.owned)
        await one_round(node)
        assert await coordinator.owners() == {}
        assert not parts.ownership.owned
    app.close()


async def test_a_heartbeat_after_an_outage_reads_only_the_queues_that_were_not_read(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = declared(sqlite_url, FEW)
    queues = set(app.queues)
    async with running(app) as node:
        await until_settled(node, FEW)
        limits, read = app.store.limits, list[str]()

        def failing(queue: str) -> Steps[dict[str, int]]:
            read.append(queue)
            if not len(read) % 4:
                raise StoreUnavailable("the server restarts")
            return limits(queue)

        monkeypatch.setattr(app.store, "limits", failing)
        for queue in queues:
            app.store.database.run(app.sql_store.pause(queue, True))
        for _ in range(FEW):
            with suppress(StoreUnavailable):
                await node.parts.membership.beat()
        assert node.parts.controls.paused == queues
        assert len(read) < 2 * FEW
    app.close()
