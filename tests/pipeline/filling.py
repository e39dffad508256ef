"""Rows inserted directly into a store, which is faster than running tasks and allows any row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from fairlead import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.config import Settings
from fairlead.connect import task_store
from fairlead.connections import connect
from fairlead.core.ids import IdSource, id_text
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger
from fairlead.model.history import Reader
from fairlead.pipeline.warehouse.warehouse import Warehouse

START = 1_700_000_000_000_000
COLUMNS = (
    "task_id",
    "attempt",
    "tries",
    "queue",
    "name",
    "partition",
    "priority",
    "fairness_key",
    "weight",
    "ordering_key",
    "unique_key",
    "version",
    "submitted_at",
    "run_at",
    "ready_at",
    "triggered_at",
    "claimed_at",
    "started_at",
    "finished_at",
    "outcome",
    "next_state",
    "error_type",
    "error_text",
    "node",
    "trigger_path",
    "payload_bytes",
)


def migrated(url: str) -> Any:
    """Return the migrated task store of the URL; the caller closes its database."""
    with closing(App(url)) as app:
        app.migrate()
    return task_store(url)


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """Yield a separate connection, in autocommit mode."""
    with closing(task_store(url).database.connect()) as connection:
        yield connection


def attempt(n: int) -> tuple[Any, ...]:
    """Return the n-th attempt. Its columns have different values where possible, and every third
    attempt has no run."""
    ran = n % 3 != 0
    at = START + n * 1000
    return (
        id_text(n),
        1,
        2,
        f"queue-{n % 2}",
        "work",
        3,
        4,
        f"tenant-{n % 7}",
        1.5,
        f"order-{n}" if ran else None,
        f"unique-{n}",
        5,
        at,
        at + 1,
        at + 2 if ran else None,
        at + 3 if ran else None,
        at + 4 if ran else None,
        at + 5 if ran else None,
        at + 6,
        "done" if ran else "cancelled",
        "DONE" if ran else "CANCELLED",
        None if ran else "Trouble",
        None if ran else "text",
        "node-6" if ran else None,
        "hook",
        7,
    )


def add_attempts(connection: Any, numbers: Iterable[int]) -> None:
    """Add the attempts with these numbers, in one statement or in the connection's transaction."""
    add_rows(connection, [attempt(n) for n in numbers])


def add(url: str, *numbers: int) -> None:
    """Add the attempts with these numbers, each in its own transaction."""
    with connected(url) as connection:
        for n in numbers:
            add_attempts(connection, [n])


def reader_of(history: SqlHistory, lake: Warehouse) -> Reader:
    """Return the lake as a reader of the store."""
    readers = history.database.read_now(history.readers())
    return next(each for each in readers if each.name == lake.reader)


def add_rows(connection: Any, rows: Iterable[tuple[Any, ...]]) -> None:
    """Add rows of `COLUMNS` to the attempts, in one statement or in the connection's transaction."""
    marker = "%s" if isinstance(connection, psycopg.Connection) else "?"
    statement = f"INSERT INTO fairlead_attempts ({', '.join(COLUMNS)}) VALUES ({', '.join([marker] * len(COLUMNS))})"
    connection.cursor().executemany(statement, rows)


@contextmanager
def adding(url: str, pause: float, most: int) -> Iterator[list[int]]:
    """Add about `most` attempts in a thread, or fewer if the block ends before; yield the growing list
    of their numbers."""
    added: list[int] = []
    ends = threading.Event()

    def add() -> None:
        with connected(url) as connection:
            while len(added) < most and not ends.wait(pause):
                batch = range(len(added), len(added) + 1 + len(added) % 5)
                add_attempts(connection, batch)
                added.extend(batch)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        yield added
    finally:
        ends.set()
        thread.join()


def add_backlog(url: str, lane: LaneKey, count: int, acked: int) -> list[Trigger]:
    """Add a lane of `count` triggers with the ack level at the `acked`-th; return the triggers above."""
    ids = [id_text(value) for value in IdSource().block(count, START)]
    entries = [
        Trigger(
            id=ids[n],
            version=2,
            queue=lane.queue,
            partition=lane.partition,
            name="work",
            priority=lane.priority,
            fairness_key=f"tenant-{n % 7}",
            weight=1.5,
            ordering_key=f"order-{n}" if n % 2 else None,
            seq=100 + n,
            level=Level(n // 3, n),
            order_at=START + n if n % 2 else 0,
        )
        for n in range(1, count)
    ]
    above = entries[acked:]
    record = LaneRecord(ack_level=entries[acked - 1].level if acked else Level(0, 0))
    asyncio.run(_write(url, lane, entries, record))
    return above


async def _write(url: str, lane: LaneKey, entries: list[Trigger], record: LaneRecord) -> None:
    if url.startswith("cassandra"):
        from fairlead.backends.cassandra.backlog import CassandraBacklogStore

        store: Any = CassandraBacklogStore(url)
    else:
        settings = Settings(url, backlog="database")
        store = connect(settings, SYSTEM_CLOCK, {}, lambda what, count: None).backlog
    try:
        await store.migrate()
        owned = (await store.take_over([PartitionKey(lane.queue, lane.partition)]))[
            PartitionKey(lane.queue, lane.partition)
        ]
        await store.write(lane, owned.range_id, entries, record)
    finally:
        await store.close()
