"""The backlog store on Cassandra: every write is a lightweight transaction on the range id of the
partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from uuid import UUID

import msgspec
from cassandra.query import UNSET_VALUE

from fairlead.backends.cassandra.keyspace_owner import KeyspaceOwner
from fairlead.backends.cassandra.session import (
    MOST_BYTES,
    CassandraSession,
    CassandraUrl,
    bytes_of,
)
from fairlead.backends.sql.backlog import columns, triggers_of, unfinished_record
from fairlead.backends.sql.rows import canonical
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger, read_lanes
from fairlead.ports.backlog_store import HIGHEST, Fenced, OwnedBacklog
from fairlead.ports.cluster import Cluster
from fairlead.ports.statements import Row

_ROW_OVERHEAD = 100
"""Approximate bytes of a row without its texts."""

_SCHEMA = ("create_backlog", "create_task_index")

_encode = msgspec.json.encode


class CassandraBacklogStore:
    """A `fairlead.ports.backlog_store.BacklogStore` on Cassandra, which connects at its first use.

    A write of more than MOST_BYTES is split into pieces, and each piece is atomic. If the owner
    dies between two pieces, the finished pieces stay, under a record that makes the channel bring
    all triggers of the write again.

    Callers must write to the lanes of a partition one after another. Concurrent transactions on a
    partition compete for ballots: 200 writes took 5 s instead of 2 s, and some of them raised
    StoreUnavailable.
    """

    persist_seconds = 60.0
    delete_acks = 1000

    def __init__(self, url: str, store: Cluster | None = None) -> None:
        """Open no connection yet. `store`: task store that the keyspace must belong to; None checks
        nothing. Raise ConfigurationError for a wrong URL."""
        self.session = CassandraSession(CassandraUrl.parse(url), "backlog.cql", _SCHEMA)
        self._keyspace = KeyspaceOwner(self.session, store)

    async def migrate(self) -> None:
        """Create the keyspace, the table and its index if they are missing. Raise
        StoreUnavailable."""
        await self.session.migrate()

    async def take_over(
        self, partitions: Sequence[PartitionKey]
    ) -> dict[PartitionKey, OwnedBacklog]:
        await self._keyspace.require()
        return {partition: await self._take_over(partition) for partition in partitions}

    async def _take_over(self, partition: PartitionKey) -> OwnedBacklog:
        held = None
        while True:
            range_id = (held or 0) + 1
            found = await self._conditionally([("raise_range_id", (range_id, *partition, held))])
            if found is None:
                break
            (held,) = found  # another owner was faster, or there was one before
        # Read after raising the fence, so that no write of an earlier owner can follow. A plain
        # quorum is enough, here and in read_above: our transaction has completed any unfinished one
        # at the same quorum. A later unfinished transaction is a write of our own that raised
        # StoreUnavailable and will be repeated.
        rows = await self.session.execute("lanes", *partition)
        return _owned(partition, range_id, rows[0][3])

    async def write(
        self, lane: LaneKey, range_id: int, entries: Sequence[Trigger], record: LaneRecord
    ) -> None:
        pieces = list(_pieces(entries))
        unfinished = unfinished_record(record, entries)
        for n, piece in enumerate(pieces, 1):
            encoded = _encode(record if n == len(pieces) else unfinished).decode()
            keep_record = (
                "keep_record",
                (lane.priority, encoded, lane.queue, lane.partition, range_id),
            )
            writes = [("write", _row(lane, entry)) for entry in piece]
            await self._fenced(lane, range_id, [keep_record, *writes])

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        return triggers_of(lane, await self.session.execute("read_above", *lane, *level, limit))

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        # A statement that deletes a range cannot have a condition; its batch contains another
        # statement that has one.
        fence = ("raise_range_id", (range_id, lane.queue, lane.partition, range_id))
        await self._fenced(lane, range_id, [fence, ("delete_through", (*lane, *level))])

    async def entries(self, lane: LaneKey, above: Level, task_ids: Sequence[str]) -> list[Trigger]:
        reads = [
            self.session.execute("entries_of", lane.queue, lane.partition, UUID(task_id))
            for task_id in {*map(canonical, task_ids)}
        ]
        found = [row for rows in await asyncio.gather(*reads) for row in rows]
        rows = [row for priority, *row in found if priority == lane.priority]
        return triggers_of(lane, [row for row in rows if Level(*row[:2]) > above])

    async def records(self) -> dict[PartitionKey, OwnedBacklog]:
        """Return the ownership of every partition, by a scan over all partitions.
        Raise ConfigurationError if the keyspace belongs to another application."""
        await self._keyspace.check()
        return {
            (key := PartitionKey(queue, partition)): _owned(key, range_id, records)
            async for queue, partition, range_id, records in self.session.rows("owners")
        }

    async def ahead(
        self, lane: LaneKey, above: Level, below: Level = HIGHEST, most: int | None = None
    ) -> tuple[int, int]:
        """Count the entries between two levels, and their fairness keys, by a scan."""
        keys: list[str] = []
        async with aclosing(self.session.rows("keys_between", *lane, *above, *below)) as rows:
            async for (key,) in rows:
                if most is not None and len(keys) >= most:
                    break
                keys.append(key)
        return len(keys), len(set(keys))

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self.session.close()

    # transactions ---------------------------------------------------------------------------------

    async def _fenced(
        self, lane: LaneKey, range_id: int, statements: Sequence[tuple[str, Row]]
    ) -> None:
        if await self._conditionally(statements) is not None:
            raise Fenced(
                f"partition {lane.partition} of {lane.queue} was taken over: range id {range_id} is"
                " void"
            )

    async def _conditionally(self, statements: Sequence[tuple[str, Row]]) -> Row | None:
        """Run all statements in one transaction, or none if the condition of the first one fails.

        Return None if they ran, else the current range id in a tuple.
        """
        applied, *found = (await self.session.batch(statements))[0]
        if applied:
            return None
        # A refused batch returns the keys and the range id after `applied`, but nothing more for a
        # partition without an owner.
        return (found[-1] if found else None,)


def _pieces(entries: Sequence[Trigger]) -> Iterator[list[Trigger]]:
    """Yield at least one piece, each of at most MOST_BYTES, or of a single larger entry."""
    piece: list[Trigger] = []
    room = MOST_BYTES
    for entry in entries:
        size = _ROW_OVERHEAD + bytes_of(entry.name, entry.fairness_key, entry.ordering_key)
        if piece and size > room:
            yield piece
            piece, room = [], MOST_BYTES
        piece.append(entry)
        room -= size
    yield piece


def _row(lane: LaneKey, entry: Trigger) -> Row:
    # Unset instead of null, because Cassandra writes a null as a tombstone.
    pass_, number, task_id, *others = columns(entry)
    values = (UNSET_VALUE if value is None else value for value in others)
    return (*lane, pass_, number, UUID(task_id), *values)


def _owned(key: PartitionKey, range_id: int | None, records: dict[int, str] | None) -> OwnedBacklog:
    lanes = read_lanes((records or {}).items(), "fairlead_backlog", key)
    return OwnedBacklog(range_id or 0, lanes)
