"""The backlog store on Cassandra: every write is a lightweight transaction on the range id of the
partition."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from struct import pack, unpack
from uuid import UUID

import msgspec
from cassandra.query import UNSET_VALUE

from fairlead.backends.cassandra.keyspace_owner import KeyspaceOwner
from fairlead.backends.cassandra.session import (
    MOST_BYTES,
    CassandraSession,
    CassandraUrl,
    bytes_of,
    chunks,
)
from fairlead.backends.sql.backlog import unfinished_record
from fairlead.backends.sql.rows import shared
from fairlead.model import (
    LOWEST,
    LaneKey,
    LaneRecord,
    Level,
    PartitionKey,
    Trigger,
    TriggerPath,
    read_lanes,
)
from fairlead.ports.backlog_store import Fenced, LastPass, LastPasses, OwnedBacklog
from fairlead.ports.ordered_store import OrderedStore
from fairlead.ports.statements import Row

_ROW_OVERHEAD = 100
"""Approximate bytes of a row without its texts."""

_GROUPS = 10
"""Distance from the priority of a lane to that of its groups."""

_GROUP_PAGE = 500
"""Groups in one page; a group has up to some 2,500 tasks, of 8 bytes each."""

_LOOKED_UP = 500
"""Groups or entries that one statement looks up."""

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

    def __init__(self, url: str, store: OrderedStore | None = None) -> None:
        """Open no connection yet. `store`: task store that the keyspace must belong to; None checks
        nothing. Raise ConfigurationError for a wrong URL."""
        self.session = CassandraSession(CassandraUrl.parse(url), "backlog.cql", ["create_backlog"])
        self._keyspace = KeyspaceOwner(self.session, store)

    async def migrate(self) -> None:
        """Create the keyspace and the table if they are missing. Raise StoreUnavailable."""
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
        self,
        lane: LaneKey,
        range_id: int,
        entries: Sequence[Trigger],
        record: LaneRecord,
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
            groups = [("write_group", _group(lane, group)) for group in groups_of(piece)]
            await self._fenced(lane, range_id, [keep_record, *writes, *groups])

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        one = shared()
        return [
            _trigger(lane, row, one)
            async for row in self.session.rows("read_above", *lane, *level, limit)
        ]

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        # A statement that deletes a range cannot have a condition; its batch contains another
        # statement that has one.
        fence = ("raise_range_id", (range_id, lane.queue, lane.partition, range_id))
        deletes = [("delete_through", (*each, *level)) for each in (lane, _groups_lane(lane))]
        await self._fenced(lane, range_id, [fence, *deletes])

    async def levelled(
        self, lane: LaneKey, above: Level, tasks: Sequence[tuple[str, int]]
    ) -> set[str]:
        found = await self._entries(lane, above, [UUID(task_id) for task_id, _ in tasks])
        return {task_id for task_id, _ in set(tasks) & {(e.id, e.version) for e in found}}

    async def last_passes(self, lane: LaneKey, above: Level, limit: int) -> LastPasses:
        rows = [row async for row in self.session.rows("passes_above", *lane, *above, limit)]
        found: dict[str, tuple[int, float]] = {}
        for pass_, _, key, weight in rows:
            found[key] = pass_, min(weight, found[key][1] if key in found else weight)
        through = Level(*rows[-1][:2]) if len(rows) == limit else None
        return LastPasses([LastPass(key, *ends) for key, ends in found.items()], through)

    async def records(self) -> dict[PartitionKey, OwnedBacklog]:
        """Return the ownership of every partition, by a scan over all partitions.
        Raise ConfigurationError if the keyspace belongs to another application."""
        await self._keyspace.check()
        return {
            (key := PartitionKey(queue, partition)): _owned(key, range_id, records)
            async for queue, partition, range_id, records in self.session.rows("owners")
        }

    async def ahead(
        self, lane: LaneKey, above: Level, through: Level, most: int | None = None
    ) -> tuple[int, int]:
        """Count the entries between two levels, and their fairness keys, by a scan."""
        rows = self.session.rows("keys_between", *lane, *above, *through)
        keys = [key async for (key,) in _first(rows, most)]
        return len(keys), len(set(keys))

    async def entry(self, lane: LaneKey, task_id: str) -> Trigger | None:
        try:
            task = UUID(task_id)
        except ValueError:
            return None
        return max(await self._entries(lane, LOWEST, [task]), key=_level, default=None)

    async def _entries(self, lane: LaneKey, above: Level, tasks: Sequence[UUID]) -> list[Trigger]:
        """Return the entries of these tasks above a level, in any order.

        Read 8 bytes for each entry of the lane, in groups: a second for some millions.
        """
        if not tasks:
            return []
        wanted = set(map(_tail, tasks))
        groups = _groups_lane(lane)
        hits = []
        async for *level, tails in self.session.rows(
            "groups_above", *groups, *above, page=_GROUP_PAGE
        ):
            if not wanted.isdisjoint(_unpack("Q", tails)):
                hits.append(Level(*level))
        levels = [
            level
            for some in chunks(hits, _LOOKED_UP)
            for row in await self.session.execute("groups_at", *groups, some, page=_GROUP_PAGE)
            for level in _levels_of(wanted, *row)
            if level > above
        ]
        ids = set(map(str, tasks))
        entries = [
            _trigger(lane, row)
            for some in chunks(levels, _LOOKED_UP)
            for row in await self.session.execute("entries_at", *lane, some)
        ]
        return [entry for entry in entries if entry.id in ids]

    async def count(self, lane: LaneKey, above: Level, most: int | None = None) -> int:
        """Count the entries above a level, by a scan of the lane."""
        rows = self.session.rows("ids_above", *lane, *above)
        return len([0 async for _ in _first(rows, most)])

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


def _level(entry: Trigger) -> Level:
    assert entry.level is not None
    return entry.level


def groups_of(entries: Sequence[Trigger]) -> Iterator[list[Trigger]]:
    """Yield the entries in groups that may be deleted together, lowest levels first.

    A group is deleted once its highest level is, so levels of one group are about equally far from
    the lowest of all: at most four times as far. Else one task of a long backlog in each write
    would keep every group for as long as it waits.
    """
    group: list[Trigger] = []
    last = 0
    ascending = sorted(entries, key=_level)
    for entry in ascending:
        distance = (_level(entry).pass_ - _level(ascending[0]).pass_).bit_length() // 2
        if group and distance != last:
            yield group
            group = []
        group.append(entry)
        last = distance
    if group:
        yield group


async def _first(rows: AsyncGenerator[Row, None], most: int | None) -> AsyncGenerator[Row, None]:
    """Yield the first rows, and read no more."""
    async with aclosing(rows):
        left = most
        while left is None or left > 0:
            try:
                yield await anext(rows)
            except StopAsyncIteration:
                return
            left = None if left is None else left - 1


def _groups_lane(lane: LaneKey) -> LaneKey:
    return lane._replace(priority=lane.priority + _GROUPS)


def _group(lane: LaneKey, entries: Sequence[Trigger]) -> Row:
    """Return the row of a group of entries, ascending by level."""
    tails = [_tail(UUID(entry.id)) for entry in entries]
    levels = [number for entry in entries for number in _level(entry)]
    return (
        *_groups_lane(lane),
        *_level(entries[-1]),
        pack(f"<{len(tails)}Q", *tails),
        pack(f"<{len(levels)}q", *levels),
    )


def _levels_of(wanted: set[int], tails: bytes, levels: bytes) -> list[Level]:
    """Return the levels of the wanted tasks of a group."""
    numbers = _unpack("q", levels)
    return [
        Level(numbers[2 * n], numbers[2 * n + 1])
        for n, tail in enumerate(_unpack("Q", tails))
        if tail in wanted
    ]


def _tail(task: UUID) -> int:
    """Return the last 8 bytes of an id, which are random but for two bits."""
    return task.int & (1 << 64) - 1


def _unpack(kind: str, data: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(data) // 8}{kind}", data)


def _row(lane: LaneKey, entry: Trigger) -> Row:
    # Unset instead of null, because Cassandra writes a null as a tombstone.
    ordering_key = UNSET_VALUE if entry.ordering_key is None else entry.ordering_key
    return (
        *lane,
        *_level(entry),
        UUID(entry.id),
        entry.version,
        entry.name,
        entry.fairness_key,
        entry.weight,
        ordering_key,
        entry.seq,
        entry.order_at,
    )


def _trigger(lane: LaneKey, row: Row, one: Callable[[str], str] = str) -> Trigger:
    pass_, number, task_id, version, name, fairness_key, weight, ordering_key, seq, order_at = row
    return Trigger(
        str(task_id),
        version,
        lane.queue,
        lane.partition,
        one(name),
        lane.priority,
        one(fairness_key),
        weight,
        ordering_key and one(ordering_key),
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

    return OwnedBacklog(range_id or 0, read_lanes((records or {}).items(), name))
