"""The backlog store on Cassandra: every write is a lightweight transaction on the partition's range
id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from uuid import UUID

import msgspec
from cassandra.query import UNSET_VALUE

from fairlead.backends.cassandra.session import MOST_BYTES, CassandraSession, CassandraUrl
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger, TriggerPath
from fairlead.ports.backlog_store import Fenced, Ownership
from fairlead.ports.statements import Row

_ROW_OVERHEAD = 100
"""Bytes of a row beside its texts, roughly."""

_record = msgspec.json.Decoder(LaneRecord)
_encode = msgspec.json.encode


class CassandraBacklogStore:
    """See `fairlead.ports.backlog_store.BacklogStore`. It connects when it is first used.

    What differs: a write of more than MOST_BYTES goes out in pieces, each all or nothing. If its
    owner dies in between, the pieces that have landed stay, under a record that has the triggers of
    the whole write received again.

    Write for one lane of a partition after the other: transactions of one partition that run at
    once dispute each other's ballots, which made 200 writes take 5 s instead of 2 s, and some of
    them raise StoreUnavailable.
    """

    persist_seconds = 60.0
    delete_acks = 1000

    def __init__(self, url: str) -> None:
        """Raises ConfigurationError."""
        self.session = CassandraSession(CassandraUrl.parse(url), "backlog.cql", ["create_backlog"])

    async def migrate(self) -> None:
        """Make the keyspace and the table that are missing. Raises StoreUnavailable."""
        await self.session.migrate()

    async def take_over(self, partition: PartitionKey) -> Ownership:
        held = None
        while True:
            range_id = (held or 0) + 1
            found = await self._conditionally([("raise_range_id", (range_id, *partition, held))])
            if found is None:
                break
            (held,) = found  # another was faster, or it was owned before
        # Read after the fence is up: no earlier owner's write can come in between any more. A plain
        # quorum is enough, here and in read_above: our round has finished whatever transaction it
        # found half done, at the same quorum, and what is half done after it is a write of our own
        # that raised StoreUnavailable and will be repeated.
        rows = await self.session.execute("lanes", *partition)
        return Ownership(range_id, _lanes(rows[0][3]))

    async def write(
        self, lane: LaneKey, range_id: int, entries: Sequence[Trigger], record: LaneRecord
    ) -> None:
        pieces = list(_pieces(entries))
        # Should we die after some of the pieces: nothing lies above their max_level, and what the
        # others carry counts as unread in the channel.
        first = min((entry.seq for entry in entries), default=0)
        unfinished = msgspec.structs.replace(
            record, read_seq=min(record.read_seq, max(first - 1, 0))
        )
        for n, piece in enumerate(pieces, 1):
            kept = _encode(record if n == len(pieces) else unfinished).decode()
            keep_record = (
                "keep_record",
                (lane.priority, kept, lane.queue, lane.partition, range_id),
            )
            await self._fenced(
                lane, range_id, [keep_record, *(("write", _row(lane, entry)) for entry in piece)]
            )

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        return [
            _trigger(lane, row)
            async for row in self.session.rows("read_above", *lane, *level, limit)
        ]

    async def traced_read(
        self, lane: LaneKey, level: Level, limit: int
    ) -> tuple[list[Trigger], int]:
        """As `read_above`, in one page, and how many tombstones the read has scanned at the replica
        that met the most: a range tombstone counts as two, its start and its end. Raises
        StoreUnavailable, also when the trace is late."""
        scanned: list[int] = []
        rows = await self.session.execute(
            "read_above", *lane, *level, limit, page=limit, scanned=scanned
        )
        return [_trigger(lane, row) for row in rows], max(scanned)

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        # A range cannot be deleted IF something; beside a statement that is conditional it can.
        fence = ("raise_range_id", (range_id, lane.queue, lane.partition, range_id))
        await self._fenced(lane, range_id, [fence, ("delete_through", (*lane, *level))])

    async def levelled(
        self, lane: LaneKey, above: Level, tasks: Sequence[tuple[str, int]]
    ) -> set[str]:
        """Walks the lane from the level up to its end, or until all are found: seconds for a
        million entries."""
        missing = set(tasks)
        async with contextlib.aclosing(self.session.rows("tasks_above", *lane, *above)) as rows:
            while missing and (row := await anext(rows, None)) is not None:
                missing.discard((str(row[0]), row[1]))
        return {task_id for task_id, _ in set(tasks) - missing}

    async def records(self) -> dict[PartitionKey, Ownership]:
        """Walks the partitions."""
        return {
            PartitionKey(queue, partition): Ownership(range_id, _lanes(records))
            async for queue, partition, range_id, records in self.session.rows("owners")
        }

    async def ahead(self, lane: LaneKey, above: Level, through: Level) -> tuple[int, int]:
        """Walks what lies between."""
        keys = [key async for (key,) in self.session.rows("keys_between", *lane, *above, *through)]
        return len(keys), len(set(keys))

    async def entry(self, lane: LaneKey, task_id: str) -> Trigger | None:
        """Walks the lane at the server, from its end; of millions of entries the server may give
        up: StoreUnavailable."""
        try:
            task = UUID(task_id)
        except ValueError:
            return None
        rows = await self.session.execute("entry", *lane, task)
        return _trigger(lane, rows[0]) if rows else None

    async def count(self, lane: LaneKey, above: Level) -> int:
        """Walks the lane at the server."""
        count: int = (await self.session.execute("count", *lane, *above))[0][0]
        return count

    async def close(self) -> None:
        """Let go of the connections. It may be used again."""
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
        """All or none, in one transaction, whose first statement bears the condition. None: done;
        else (range id now,)."""
        applied, *found = (await self.session.batch(statements))[0]
        if applied:
            return None
        # Of a partition that never had an owner only the refusal comes back; of a batch, keys and
        # range id.
        return (found[-1] if found else None,)


def _pieces(entries: Sequence[Trigger]) -> Iterator[list[Trigger]]:
    """At least one, of at most MOST_BYTES each unless one entry alone is more."""
    piece: list[Trigger] = []
    room = MOST_BYTES
    for entry in entries:
        size = (
            _ROW_OVERHEAD
            + len(entry.name)
            + len(entry.fairness_key)
            + len(entry.ordering_key or "")
        )
        if piece and size > room:
            yield piece
            piece, room = [], MOST_BYTES
        piece.append(entry)
        room -= size
    yield piece


def _row(lane: LaneKey, entry: Trigger) -> Row:
    assert entry.level is not None
    # Unset, not null: a null is written as a tombstone.
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


def _lanes(records: dict[int, str] | None) -> dict[int, LaneRecord]:
    return {priority: _record.decode(record) for priority, record in (records or {}).items()}
