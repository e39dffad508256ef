"""The backlog store on Cassandra: every write is a lightweight transaction on the range id of the
partition."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

import msgspec
from cassandra.query import UNSET_VALUE

from fairlead.backends.cassandra.session import MOST_BYTES, CassandraSession, CassandraUrl, bytes_of
from fairlead.model import (
    LaneKey,
    LaneRecord,
    Level,
    PartitionKey,
    Trigger,
    TriggerPath,
    read_lanes,
)
from fairlead.ports.backlog_store import Fenced, KeyEntries, LastPass, LastPasses, OwnedBacklog
from fairlead.ports.statements import Row

_ROW_OVERHEAD = 100
"""Approximate bytes of a row without its texts."""

_MOST_DELETED = 500
"""Greatest number of rows that one transaction deletes one by one."""

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

    def __init__(self, url: str) -> None:
        """Open no connection yet. Raise ConfigurationError for a wrong URL."""
        self.session = CassandraSession(CassandraUrl.parse(url), "backlog.cql", ["create_backlog"])

    async def migrate(self) -> None:
        """Create the keyspace and the table if they are missing. Raise StoreUnavailable."""
        await self.session.migrate()

    async def take_over(
        self, partitions: Sequence[PartitionKey]
    ) -> dict[PartitionKey, OwnedBacklog]:
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

    async def unreadable(self, partition: PartitionKey) -> dict[int, str]:
        rows = await self.session.execute("lanes", *partition)
        return _owned(partition, 0, rows[0][3] if rows else None).unreadable

    async def write(
        self,
        lane: LaneKey,
        range_id: int,
        entries: Sequence[Trigger],
        record: LaneRecord,
        moved: Sequence[Level] = (),
    ) -> None:
        pieces = list(_pieces(entries))
        # In case we die after some pieces: the record has the final max_level already, and its
        # lower read_seq makes the channel deliver the triggers again.
        first = min((entry.seq for entry in entries), default=0)
        unfinished = msgspec.structs.replace(
            record, read_seq=min(record.read_seq, max(first - 1, 0))
        )
        for n, piece in enumerate(pieces, 1):
            encoded = _encode(record if n == len(pieces) else unfinished).decode()
            keep_record = (
                "keep_record",
                (lane.priority, encoded, lane.queue, lane.partition, range_id),
            )
            await self._fenced(
                lane, range_id, [keep_record, *(("write", _row(lane, entry)) for entry in piece)]
            )
        # Last: a crash before leaves a task with two levels, of which one claim is refused.
        for first in range(0, len(moved), _MOST_DELETED):
            deletes = [
                ("delete_level", (*lane, *level)) for level in moved[first : first + _MOST_DELETED]
            ]
            await self._fenced(lane, range_id, [keep_record, *deletes])

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        return [
            _trigger(lane, row)
            async for row in self.session.rows("read_above", *lane, *level, limit)
        ]

    async def traced_read(
        self, lane: LaneKey, level: Level, limit: int
    ) -> tuple[list[Trigger], int]:
        """Read as `read_above` does, in one page. Return the entries and the number of tombstones.

        The tombstones are those that the replica with the most has scanned; a range tombstone
        is two tombstones, its start and its end. Raise StoreUnavailable, also if the trace is late.
        """
        scanned: list[int] = []
        rows = await self.session.execute(
            "read_above", *lane, *level, limit, page=limit, scanned=scanned
        )
        return [_trigger(lane, row) for row in rows], max(scanned)

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        # A statement that deletes a range cannot have a condition; its batch can contain another
        # statement that has one.
        fence = ("raise_range_id", (range_id, lane.queue, lane.partition, range_id))
        await self._fenced(lane, range_id, [fence, ("delete_through", (*lane, *level))])

    async def levelled(
        self, lane: LaneKey, above: Level, tasks: Sequence[tuple[str, int]]
    ) -> set[str]:
        """Return the ids of `tasks` that have a level above `above`.

        Scan the lane from there to its end, or until all are found: seconds for a million entries.
        """
        missing = set(tasks)
        async with contextlib.aclosing(self.session.rows("tasks_above", *lane, *above)) as rows:
            while missing and (row := await anext(rows, None)) is not None:
                missing.discard((str(row[0]), row[1]))
        return {task_id for task_id, _ in set(tasks) - missing}

    async def last_passes(self, lane: LaneKey, above: Level, limit: int) -> LastPasses:
        rows = [row async for row in self.session.rows("passes_above", *lane, *above, limit)]
        found: dict[str, tuple[int, float]] = {}
        for pass_, _, key, weight in rows:
            found[key] = pass_, min(weight, found[key][1] if key in found else weight)
        through = Level(*rows[-1][:2]) if len(rows) == limit else None
        return LastPasses([LastPass(key, *ends) for key, ends in found.items()], through)

    async def entries_of(
        self, lane: LaneKey, above: Level, keys: Collection[str], limit: int
    ) -> KeyEntries:
        rows = await self.read_above(lane, above, limit)
        through = rows[-1].level if len(rows) == limit else None
        wanted = frozenset(keys)
        return KeyEntries([row for row in rows if row.fairness_key in wanted], through)

    async def records(self) -> dict[PartitionKey, OwnedBacklog]:
        """Return the ownership of every partition, by a scan over all partitions."""
        return {
            (key := PartitionKey(queue, partition)): _owned(key, range_id, records)
            async for queue, partition, range_id, records in self.session.rows("owners")
        }

    async def ahead(self, lane: LaneKey, above: Level, through: Level) -> tuple[int, int]:
        """Count the entries between two levels, and their fairness keys, by a scan."""
        keys = [key async for (key,) in self.session.rows("keys_between", *lane, *above, *through)]
        return len(keys), len(set(keys))

    async def entry(self, lane: LaneKey, task_id: str) -> Trigger | None:
        """Return the entry of a task, by a scan of the lane at the server, from its end.

        Raise StoreUnavailable, also if the lane is too long (millions) for the server's time limit.
        """
        try:
            task = UUID(task_id)
        except ValueError:
            return None
        rows = await self.session.execute("entry", *lane, task)
        return _trigger(lane, rows[0]) if rows else None

    async def count(self, lane: LaneKey, above: Level) -> int:
        """Count the entries above a level, by a scan of the lane at the server."""
        count: int = (await self.session.execute("count", *lane, *above))[0][0]
        return count

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
    assert entry.level is not None
    # Unset instead of null, because Cassandra writes a null as a tombstone.
    ordering_key = UNSET_VALUE if entry.ordering_key is None else entry.ordering_key
    return (
        *lane,
        *entry.level,
        UUID(entry.id),
        entry.version,
        entry.name,
        entry.fairness_key,
        entry.weight,
        ordering_key,
        entry.seq,
        entry.order_at,
    )


def _trigger(lane: LaneKey, row: Row) -> Trigger:
    pass_, number, task_id, version, name, fairness_key, weight, ordering_key, seq, order_at = row
    return Trigger(
        str(task_id),
        version,
        lane.queue,
        lane.partition,
        name,
        lane.priority,
        fairness_key,
        weight,
        ordering_key,
        TriggerPath.SPILL,
        seq,
        Level(pass_, number),
        order_at,
    )


def _owned(key: PartitionKey, range_id: int | None, records: dict[int, str] | None) -> OwnedBacklog:
    def name(priority: int) -> str:
        return (
            f"records[{priority}] of fairlead_backlog with queue {key.queue!r} and partition"
            f" {key.partition}"
        )

    lanes, unreadable = read_lanes((records or {}).items(), name)
    return OwnedBacklog(range_id or 0, lanes, unreadable)
