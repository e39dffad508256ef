"""The task log in the task store's database: an entry is a row that is deleted when it is in the
schedule.

So an append can be part of the caller's transaction, and an entry that commits late is read late
instead of never.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import Future

from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import Clock
from fairlead.model import PartitionKey
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Row, Statement, Steps
from fairlead.ports.task_log import MOST_BYTES, Batch, Entry, decode, encode, partition_of

log = logging.getLogger("fairlead.task_log")

SWEEP_SECONDS = 2.0
"""Seconds between two reads without a notification, because a notification may be lost."""

_LEAST = 20
"""Entries of each partition that one read returns at least, however many partitions there are."""


class SqlTaskLog:
    """A `fairlead.ports.task_log.TaskLog` in the database of a task store."""

    joins_transactions = True

    def __init__(self, store: SqlTaskStore, clock: Clock) -> None:
        self._store = store
        self._database = store.database
        self._sql = load("schedule.sql", package_of(store.database))
        self._clock = clock
        self._poked = asyncio.Event()
        self._out: set[PartitionKey] = set()
        """Partitions with a batch that is not committed yet."""

    @property
    def location(self) -> str:
        return self._database.location

    def room(self) -> Future[None] | None:
        return None

    def append(self, entries: Sequence[Entry]) -> Future[None]:
        done: Future[None] = Future()
        self._database.run(self.appending(entries))
        done.set_result(None)
        return done

    def appending(self, entries: Sequence[Entry]) -> Steps[None]:
        if not entries:
            return
        yield Statement(
            self._sql["append"], (batch([(*partition_of(e), encode(e).decode()) for e in entries]),)
        )
        yield from self._store.announce(notification_of(entries))

    async def prepare(self, queue: str) -> Sequence[str]:
        return ()

    async def check(self, queue: str) -> Sequence[str]:
        return ()

    async def ensure_partitions(self, queue: str, partitions: int) -> None:
        """Do nothing: there are as many partitions as rows name."""

    async def await_appends(self, queue: str) -> None:
        # A transaction that may write begins after the end of all others.
        await self._database.run_async(self._lag(queue))

    async def receive(
        self, wanted: Collection[PartitionKey], limit: int, most_bytes: int = MOST_BYTES
    ) -> Sequence[Batch]:
        free = sorted(set(wanted) - self._out)
        self._poked.clear()
        if free:
            each = max(_LEAST, limit // len(free))
            rows = await self._database.read(self._receive(free, each, most_bytes))
            if rows:
                return self._batches(rows)
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                await self._poked.wait()
        except TimeoutError:
            pass
        return ()

    def _receive(
        self, partitions: Sequence[PartitionKey], each: int, most_bytes: int
    ) -> Steps[Sequence[Row]]:
        return (yield Statement(self._sql["receive"], (batch(partitions), each, most_bytes)))

    def _batches(self, rows: Sequence[Row]) -> list[Batch]:
        found: dict[PartitionKey, Batch] = {}
        for seq, queue, partition, message in rows:
            key = PartitionKey(queue, partition)
            into = found.setdefault(key, Batch(key, [], []))
            into.mark.append(seq)
            entry = decode(message)
            if entry is None:
                log.error(
                    "skipped an entry of the task log that cannot be read",
                    extra={"queue": queue, "seq": seq},
                )
                found[key] = into._replace(unreadable=into.unreadable + 1)
            else:
                into.entries.append(entry)
        self._out.update(found)
        return list(found.values())

    async def commit(self, batch: Batch) -> None:
        # Need not be durable: entries that come back after a power cut are persisted again, which
        # changes nothing.
        await self._database.run_async(self._commit(batch), durable=False)
        self._out.discard(batch.partition)
        self._poked.set()

    def _commit(self, done: Batch) -> Steps[None]:
        yield Statement(self._sql["commit"], (batch(done.mark), *done.partition))

    async def is_behind(self, partition: PartitionKey) -> bool:
        return bool(await self._database.read(self._receive([partition], 1, 0)))

    async def rewind(self, partition: PartitionKey) -> None:
        self._out.discard(partition)
        self._poked.set()

    def poke(self) -> None:
        self._poked.set()

    async def lag(self, queue: str) -> dict[int, int]:
        return dict(await self._database.read(self._lag(queue)))  # type: ignore[arg-type]

    def _lag(self, queue: str) -> Steps[Sequence[Row]]:
        return (yield Statement(self._sql["lag"], (queue,)))

    async def has_entries(self, queue: str) -> bool:
        return await self._database.read(self._has_entries(queue))

    def _has_entries(self, queue: str) -> Steps[bool]:
        return bool((yield Statement(self._sql["has_entries"], (queue,)))[0][0])

    async def close(self) -> None:
        """Do nothing: the task store closes the database."""


def notification_of(entries: Sequence[Entry]) -> Notification:
    """Return the notification that announces the entries."""
    return Notification(log=sorted({partition_of(entry).queue for entry in entries}))
