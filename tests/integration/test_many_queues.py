"""Nodes that serve many queues: the work of a round depends on what changed, not on the queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.sql import drivers
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.engine import ownership
from fairlead.engine.lanes import Lanes
from fairlead.engine.node import Node
from fairlead.model import PartitionKey
from fairlead.testing import running
from tests.waiting import until

FEW, MANY = 20, 800
TRIES = 10
"""Measured rounds; other parts of the node may work during some of them."""


class Work:
    """Counts the instructions of SQLite."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = 0
        made = drivers._sqlite3

        def tick() -> None:
            self.database += 1

        def counting(connection: Any) -> Any:
            connection.set_progress_handler(tick, 1)
            return made(connection)

        monkeypatch.setattr(drivers, "_sqlite3", counting)


def declared(url: str, queues: int) -> App:
    app = App(url)
    for number in range(queues):
        app.queue(f"queue-{number}")
    app.migrate()
    return app


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
            for _ in range(TRIES):
                work.database, began = 0, thread_time()
                await one_round(node)
                found.append((work.database, thread_time() - began))
    app.close()
    return min(database for database, _ in found), min(loop for _, loop in found)


async def test_a_round_without_changes_costs_the_same_for_few_and_for_many_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = [
        await work_of_a_round(f"sqlite:///{tmp_path / str(n)}.db", n, monkeypatch)
        for n in (FEW, MANY)
    ]
    assert 0 < many[0] < 1.5 * few[0]
    assert many[1] < MANY / FEW / 4 * few[1]


async def test_a_round_without_changes_is_two_transactions_of_postgresql(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[object] = []

    def count(name: str) -> None:
        given = getattr(PostgresDatabase, name)

        def counting(self: Any, *arguments: Any, **options: Any) -> Any:
            counted.append(name)
            return given(self, *arguments, **options)

        monkeypatch.setattr(PostgresDatabase, name, counting)

    app = declared(migrated_postgres_url, FEW)
    async with running(app) as node:
        await until_settled(node, FEW)
        count("run_async")
        count("read")
        rounds = []
        for _ in range(TRIES):
            counted.clear()
            await one_round(node)
            rounds.append([*counted])
    app.close()
    assert min(rounds, key=len) == ["run_async", "run_async"]


async def test_many_partitions_are_acquired_in_pieces_and_each_begins_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "MOST_AT_ONCE", 100)
    queues = 250
    asked: list[int] = []
    begun: Counter[object] = Counter()
    acquire, positions = DatabaseCoordinator.acquire, Lanes.positions

    async def acquiring(self: Any, names: Sequence[str], owner: str, ttl: float) -> Any:
        asked.append(len(names))
        return await acquire(self, names, owner, ttl)

    def counting(self: Lanes, key: PartitionKey) -> dict[int, int] | None:
        begun[key] += key in self._owned
        return positions(self, key)

    monkeypatch.setattr(DatabaseCoordinator, "acquire", acquiring)
    monkeypatch.setattr(Lanes, "positions", counting)
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
