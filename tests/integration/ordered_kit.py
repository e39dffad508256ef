"""Helpers for tests of ordered queues: pairs of a log and a schedule, a settable clock, a record of
runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sql.schedule import SqlScheduleStore
from fairlead.clock import MICROS, SystemClock
from fairlead.core.sharding.partitions import partition_of
from fairlead.engine.node import Node

PAIRS = [
    "sqlite",
    "postgres",
    "sqlite, kafka, cassandra",
    "sqlite, kafka",
    "sqlite, database, cassandra",
]
"""Pairs of a log and a schedule: the task store, then log and schedule if they are elsewhere."""

SOON = 240.0
"""Timeout of every wait, in seconds."""


def open_pair(pair: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a fresh task store, and put the URLs of the log and the schedule into the
    environment."""
    store, *others = pair.split(", ")
    for part, server in zip(("LOG", "SCHEDULE"), others, strict=False):
        if server == "database":
            continue
        pytest.importorskip(
            {"kafka": "confluent_kafka"}.get(server, server), reason=f"needs the extra {server}"
        )
        fixture = "migrated_cassandra_url" if server == "cassandra" else f"{server}_url"
        monkeypatch.setenv(f"FAIRLEAD_{part}", str(request.getfixturevalue(fixture)))
    return str(request.getfixturevalue(f"{store}_url"))


class SetClock(SystemClock):
    """The machine's clock, set ahead by some seconds."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    def now(self) -> int:
        return super().now() + round(self.ahead * MICROS)


@dataclass
class Runs:
    """Starts of runs, in order, and waits for them."""

    started: list[tuple[str, float]] = field(default_factory=list)
    """(name, wall time in seconds)."""
    running: Counter[str] = field(default_factory=Counter)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.started]

    def at(self, name: str) -> float:
        """Return the wall time of the first start of this task, in seconds."""
        return next(at for n, at in self.started if n == name)

    def start(self, name: str, now: float) -> None:
        self.started.append((name, now))
        self.changed.set()

    async def until(self, *names: str) -> None:
        """Wait until all tasks of these names have started."""
        async with asyncio.timeout(SOON):
            while not set(names) <= set(self.names):
                self.changed.clear()
                await self.changed.wait()

    async def until_count(self, count: int) -> None:
        async with asyncio.timeout(SOON):
            while len(self.started) < count:
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Kit:
    """An application with one ordered queue, `reminders`, and a task that notes its runs."""

    app: App
    runs: Runs
    remind: Any
    clock: SetClock

    def at(self, seconds: float) -> datetime:
        """Return the time in `seconds` from now."""
        return datetime.fromtimestamp(self.clock.now() / MICROS, UTC) + timedelta(seconds=seconds)

    def submit(
        self,
        name: str,
        ordering_key: str = "a",
        at: datetime | None = None,
        unique_key: str | None = None,
    ) -> Any:
        options: dict[str, Any] = {"ordering_key": ordering_key}
        if at is not None:
            options["run_at"] = at
        if unique_key is not None:
            options["unique_key"] = unique_key
        handle = self.remind.options(**options).submit(name=name)
        handle.result(SOON)  # wait until the log has the task: Kafka takes a moment
        return handle


def open_app(
    url: str, clock: SetClock | None = None, runs: Runs | None = None, **queue: Any
) -> Kit:
    """Return an application with an ordered queue on the task store at `url`."""
    clock = clock or SetClock()
    app = App(url, clock=clock)
    app.queue("reminders", kind="ordered", **{"partitions": 8, **queue})
    runs = runs or Runs()

    @app.task(queue="reminders")
    async def remind(name: str) -> None:
        runs.start(name, clock.now() / MICROS)

    app.migrate()
    return Kit(app, runs, remind, clock)


AHEAD = (1.5, 15.0, 60.0)
"""Seconds until a task is due. Some tests need the task in memory before it is due; on a machine
that was too slow, they try the next value."""


async def is_loaded_before(kit: Kit, at: datetime, node: Node, *unique_keys: str) -> bool:
    """Wait until the tasks with these unique keys are in memory; return False if `at` came first."""
    while kit.at(0) < at:
        tenures = [each.tenure for each in node.parts.ordered._partitions.values() if each.tenure]
        if set(unique_keys) <= {
            key.unique_key for tenure in tenures for key in tenure.schedule._lines.task_keys
        }:
            return kit.at(0) < at
        await asyncio.sleep(0.01)
    return False


def keys_of_partitions(partitions: int, wanted: int) -> list[str]:
    """Return one ordering key for each of `wanted` partitions."""
    found: dict[int, str] = {}
    n = 0
    while len(found) < wanted:
        found.setdefault(partition_of(f"k{n}", 0, partitions), f"k{n}")
        n += 1
    return [found[partition] for partition in sorted(found)]


@contextmanager
def cassandra_of(app: App) -> Iterator[Any]:
    """Yield a session of the keyspace with the schedule of an application."""
    from cassandra.cluster import Cluster

    url = app.connections.schedule.session.url  # type: ignore[union-attr]
    (host, port), *_ = url.hosts
    with Cluster([host], port, protocol_version=5) as cluster:
        yield cluster.connect(url.keyspace)


def damage_rows(app: App) -> None:
    """Overwrite every task of the schedule with nonsense, as a broken program or disk might."""
    if is_in_database(app):
        with app.store.database.transaction() as connection:
            connection.execute("UPDATE fairlead_schedule SET task = 'nonsense'")
        return
    keys = ("queue", "partition", "hour", "run_at", "ordering_key", "unique_key")
    where = " AND ".join(f"{key} = %s" for key in keys)
    with cassandra_of(app) as session:
        for row in session.execute(f"SELECT {', '.join(keys)} FROM fairlead_schedule"):
            late = f"UPDATE fairlead_schedule USING TIMESTAMP {2**62} SET task = 'nonsense' WHERE {where}"
            session.execute(late, tuple(row))


def rows_of(app: App) -> list[str]:
    """Return the tasks of the schedule."""
    tasks = "SELECT task FROM fairlead_schedule"
    if is_in_database(app):
        with app.store.database.transaction() as connection:
            return [row[0] for row in connection.execute(tasks)]
    with cassandra_of(app) as session:
        return [row.task for row in session.execute(tasks)]


def is_in_database(app: App) -> bool:
    """Return whether schedule and tasks are in one database."""
    return isinstance(app.connections.schedule, SqlScheduleStore)
