"""The task log: the durable intake of ordered queues. It never loses an entry that it has accepted;
entries are read in order, by partition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import msgspec

from fairlead.model import NewTask, PartitionKey, TaskKey
from fairlead.model.reading import Reader
from fairlead.ports.statements import Steps

MOST_BYTES = 16 << 20
"""Bytes of the messages of one batch, unless a reader asks for another number."""


class Submit(msgspec.Struct, frozen=True, gc=False, tag="submit"):
    """A task to schedule, which replaces an earlier task with the same key."""

    task: NewTask


class Drop(msgspec.Struct, frozen=True, gc=False, tag="drop"):
    """A person's request to complete the task with this key without another run, in whatever state
    the task is."""

    queue: str
    partition: int
    key: TaskKey
    actor: str
    at: int
    """Microseconds since the epoch."""


Entry = Submit | Drop

encode = msgspec.json.Encoder().encode
"""Encode an entry as a message in JSON, so that other languages may write entries."""

_read: Reader[Entry] = Reader(msgspec.json.Decoder(Entry).decode)


def decode(message: str | bytes) -> Entry | None:
    """Return the entry in a message; None if the message cannot be read."""
    try:
        return _read(message)
    except msgspec.DecodeError:
        return None


def partition_of(entry: Entry) -> PartitionKey:
    """Return the partition of an entry."""
    about = entry.task if isinstance(entry, Submit) else entry
    return PartitionKey(about.queue, about.partition)


class Batch(NamedTuple):
    """The next entries of one partition."""

    partition: PartitionKey
    entries: list[Entry]
    """Entries in the order of the log."""
    mark: Any
    """Value that only the log reads, for `commit`."""
    unreadable: int = 0
    """Messages left out because they are not entries."""


class TaskLog(Protocol):
    """The log of an application's ordered queues. `append` is for submitters, the rest is for
    nodes. Calls that need the servers raise StoreUnavailable while they are unavailable."""

    joins_transactions: bool
    """Whether the log is in the task store's own database, so that entries may be appended in a
    transaction of the caller."""

    @property
    def location(self) -> str:
        """Name of the log for messages, without secrets."""

    def room(self) -> Future[None] | None:
        """Return a future that ends when the log has room for further entries, or None if it has
        room now. The future raises StoreUnavailable if no room is free in time. Submitters wait for
        it before an append, so that a slow log slows them down instead of filling the memory."""

    def append(self, entries: Sequence[Entry]) -> Future[None]:
        """Append the entries, from any thread, even if there is no room. A log on a server of its
        own does not block the caller. The future ends when the log has stored all of them durably,
        or fails if the log may not have stored them. A log that knows of the failure at once may
        raise it. Entries of one partition keep their order."""

    def appending(self, entries: Sequence[Entry]) -> Steps[None]:
        """Append the entries as steps of a transaction, if the log joins transactions. Raises
        NotSupported if it does not."""

    async def prepare(self, queue: str) -> Sequence[str]:
        """Prepare the log of a queue before a node serves the queue; return what people should know
        about the log. Raises ConfigurationError if the log belongs to another application or would
        lose entries."""

    async def check(self, queue: str) -> Sequence[str]:
        """Check the log of a queue as `prepare` does, but change nothing."""

    async def ensure_partitions(self, queue: str, partitions: int) -> None:
        """Make room for this number of partitions at least. Raises ConfigurationError,
        StoreUnavailable."""

    async def await_appends(self, queue: str) -> None:
        """Wait until each append to the queue that any process has begun is stored or has failed,
        also if its transaction is still open."""

    async def receive(
        self, wanted: Collection[PartitionKey], limit: int, most_bytes: int = MOST_BYTES
    ) -> Sequence[Batch]:
        """Return the next entries of the partitions, about `limit` entries in all. The messages of
        a batch have at most `most_bytes` bytes, unless the first one has more. Each partition
        has at most one batch in use: the next one comes after `commit` of this one, or after
        `rewind`. Waits while there are no entries. Returns an empty result after `poke`, and from
        time to time."""

    async def commit(self, batch: Batch) -> None:
        """Record that the batch is persisted and need not be read again. Entries that are not
        committed are received again, by the next owner at the latest. A crash may undo a commit."""

    async def is_behind(self, partition: PartitionKey) -> bool:
        """Return whether the partition has entries that are not committed."""

    async def rewind(self, partition: PartitionKey) -> None:
        """Receive all entries again that are not committed now, whatever an earlier owner commits
        later. A new owner awaits this before it fences the earlier one. Raises StoreUnavailable;
        call it again then."""

    def poke(self) -> None:
        """End the wait of `receive`: there may be more entries, or more partitions are wanted."""

    async def lag(self, queue: str) -> dict[int, int]:
        """Return how many entries are not committed, by partition, without partitions that have
        none; for people."""

    async def has_entries(self, queue: str) -> bool:
        """Return whether an entry is not committed, without a count."""

    async def close(self) -> None:
        """Close the log's own connections, if it has any."""
