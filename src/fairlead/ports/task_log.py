"""The task log: the durable intake of ordered queues. What it has taken is never lost; it is read
in order, by partition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import msgspec

from fairlead.model import NewTask, PartitionKey, TaskKey
from fairlead.ports.statements import Steps


class Submit(msgspec.Struct, frozen=True, gc=False, tag="submit"):
    """A task to be scheduled. One with the key of an earlier one takes its place."""

    task: NewTask


class Drop(msgspec.Struct, frozen=True, gc=False, tag="drop"):
    """A person's wish: end the task with this key, whatever it does; it counts as completed."""

    queue: str
    partition: int
    key: TaskKey
    actor: str
    at: int
    """Microseconds."""


Entry = Submit | Drop

encode = msgspec.json.Encoder().encode
"""An entry as a message: JSON, so that other languages may write it."""

_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def decode(message: str | bytes) -> Entry | None:
    """The entry in a message; None for one that cannot be read."""
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def partition_of(entry: Entry) -> PartitionKey:
    """Where an entry belongs."""
    about = entry.task if isinstance(entry, Submit) else entry
    return PartitionKey(about.queue, about.partition)


class Batch(NamedTuple):
    """What comes next in one partition."""

    partition: PartitionKey
    entries: list[Entry]
    """In the order of the log."""
    mark: Any
    """The log's own: what `commit` is told."""
    unreadable: int = 0
    """Messages left out because they are no entries."""


class TaskLog(Protocol):
    """One per application. `append` is the submitter's side, the rest is a node's. What needs an
    answer raises StoreUnavailable when there is none."""

    joins_transactions: bool
    """It is the task store's own database: entries may be appended in a transaction of the
    caller's."""

    @property
    def location(self) -> str:
        """Where it is, without secrets."""

    def append(self, entries: Sequence[Entry]) -> Future[None]:
        """Add these, from any thread. The future ends when the log has all of them for good, or
        raises why it may not have them; a log that knows at once may raise right away. Entries of
        one partition keep their order."""

    def appending(self, entries: Sequence[Entry]) -> Steps[None]:
        """The same as steps of a transaction, where the log joins them; elsewhere raises
        NotSupported."""

    async def receive(self, wanted: Collection[PartitionKey], limit: int) -> Sequence[Batch]:
        """What comes next in the partitions, about `limit` entries in all. Of each at most one
        batch is out: until that one was committed, or `rewind` was called, there is no other. Waits
        while there is nothing; answers nothing after `look`, and now and then."""

    async def commit(self, batch: Batch) -> None:
        """It is persisted: nobody needs it again. Whatever is not committed is received again, by
        the next owner at the latest: this may be undone by a crash."""

    async def is_behind(self, partition: PartitionKey) -> bool:
        """Entries of the partition are there that are not committed."""

    async def rewind(self, partition: PartitionKey) -> None:
        """When it returns, all that was not committed when it was called will be received again,
        whatever an earlier owner commits later. So a new owner awaits this before it fences the
        earlier one. Raises StoreUnavailable; then call it again."""

    def poke(self) -> None:
        """There may be more, or more is wanted: do not wait."""

    async def lag(self, queue: str) -> dict[int, int]:
        """Entries that are not committed, by partition that has any; for people."""

    async def close(self) -> None:
        """Let go of connections of its own, if it has any."""
