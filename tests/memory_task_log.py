"""The task log in memory, for simulations; it passes the contract tests of the real ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future

from fairlead.clock import MICROS, Clock
from fairlead.errors import NotSupported
from fairlead.model import PartitionKey
from fairlead.pauses import TimedEvent
from fairlead.ports.statements import Steps
from fairlead.ports.task_log import MOST_BYTES, Batch, Entry, encode, partition_of

_SWEEP_SECONDS = 2.0


class MemoryTaskLog:
    """A `fairlead.ports.task_log.TaskLog` in memory.

    `beside`: the log of another node, whose entries this log shares.
    """

    location = "memory"
    joins_transactions = False

    def __init__(self, clock: Clock, beside: MemoryTaskLog | None = None) -> None:
        self._clock = clock
        self._more = TimedEvent(clock)
        self._out: set[PartitionKey] = set()
        self.entries: dict[PartitionKey, list[Entry]] = {} if beside is None else beside.entries
        """Entries that are not committed, by partition."""

    def room(self) -> Future[None] | None:
        return None

    def append(self, entries: Sequence[Entry]) -> Future[None]:
        for entry in entries:
            self.entries.setdefault(partition_of(entry), []).append(entry)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def appending(self, entries: Sequence[Entry]) -> Steps[None]:
        raise NotSupported(
            "a task log in memory joins no transaction; use one in SQLite or PostgreSQL"
        )

    async def prepare(self, queue: str) -> Sequence[str]:
        return ()

    async def check(self, queue: str) -> Sequence[str]:
        return ()

    async def ensure_partitions(self, queue: str, partitions: int) -> None:
        """Do nothing: there are as many partitions as entries name."""

    async def await_appends(self, queue: str) -> None:
        """Do nothing: an append ends at once."""

    async def receive(
        self, wanted: Collection[PartitionKey], limit: int, most_bytes: int = MOST_BYTES
    ) -> Sequence[Batch]:
        free = [key for key in sorted(set(wanted) - self._out) if self.entries.get(key)]
        if not free:
            await self._more.wait(self._clock.now() + round(_SWEEP_SECONDS * MICROS))
            return ()
        each = max(1, limit // len(free))
        self._out.update(free)
        found = {key: _within(self.entries[key][:each], most_bytes) for key in free}
        return [Batch(key, entries, len(entries)) for key, entries in found.items()]

    async def commit(self, batch: Batch) -> None:
        del self.entries[batch.partition][: batch.mark]
        self._out.discard(batch.partition)

    async def is_behind(self, partition: PartitionKey) -> bool:
        return bool(self.entries.get(partition))

    async def rewind(self, partition: PartitionKey) -> None:
        self._out.discard(partition)
        self._more.notify()

    def poke(self) -> None:
        self._more.notify()

    async def lag(self, queue: str) -> dict[int, int]:
        return {
            key.partition: len(found)
            for key, found in self.entries.items()
            if found and key.queue == queue
        }

    async def has_entries(self, queue: str) -> bool:
        return bool(await self.lag(queue))

    async def close(self) -> None:
        """Do nothing: there is no resource to close."""


def _within(entries: list[Entry], most_bytes: int) -> list[Entry]:
    """Return the first of the entries: one, and as many as have `most_bytes` bytes together."""
    left = most_bytes
    for n, entry in enumerate(entries):
        left -= len(encode(entry))
        if n and left < 0:
            return entries[:n]
    return entries
