"""The backlog store over SQL, on SQLite and PostgreSQL.

Each write checks the fence in its own transaction.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from fairlead.backends.sql.fences import Fences
from fairlead.backends.sql.rows import ALL_ROWS, batch, canonical, shared
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.errors import BatchTooLarge
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
from fairlead.ports.backlog_store import HIGHEST, Fenced, OwnedBacklog
from fairlead.ports.statements import Many, Row, Statement, Steps

_encode = msgspec.json.encode


class SqlBacklogStore(ABC):
    """A `fairlead.ports.backlog_store.BacklogStore` in the database of a task store, which from
    then on makes and checks the tables of levels too."""

    persist_seconds = 5.0
    delete_acks = 2000

    outlives_workers = True
    """True if a power cut of the database can leave workers running. Writes that workers rely on
    are then made durable."""

    def __init__(self, store: SqlTaskStore) -> None:
        store.keeps_levels = True
        self._store, self._database = store, store.database
        self._sql = load("backlog.sql", package_of(self._database))
        self._fences = Fences()
        self._deleted: dict[LaneKey, tuple[int, Level]] = {}
        """Level through which each lane's rows are deleted, with the range id of that delete."""

    async def migrate(self) -> None:
        await asyncio.to_thread(self._store.migrate)

    async def take_over(
        self, partitions: Sequence[PartitionKey]
    ) -> dict[PartitionKey, OwnedBacklog]:
        return await self._database.run_async(self._take_over(partitions))

    def _take_over(
        self, partitions: Sequence[PartitionKey]
    ) -> Steps[dict[PartitionKey, OwnedBacklog]]:
        # The update waits for an unfinished write of the previous owner, so the records that are
        # read next include that write. Rows are locked by ascending key, so that two owners cannot
        # deadlock.
        given = _encode(sorted(set(partitions))).decode()
        range_ids = {}
        for queue, partition, range_id, server in (yield self._statement("take_over", given)):
            range_ids[key := PartitionKey(queue, partition)] = range_id
            self._fences.taken(key, range_id, server)
        records: dict[PartitionKey, list[tuple[int, str]]] = {key: [] for key in range_ids}
        for queue, partition, priority, record in (yield self._statement("owned_lanes", given)):
            records[PartitionKey(queue, partition)].append((priority, record))
        return {key: _owned(key, range_ids[key], rows) for key, rows in records.items()}

    async def write(
        self, lane: LaneKey, range_id: int, entries: Sequence[Trigger], record: LaneRecord
    ) -> None:
        try:
            await self._database.run_async(
                self._write(lane, range_id, entries, record),
                durable=bool(entries) and self.outlives_workers,
            )
        except BatchTooLarge:
            if len(entries) <= 1:
                raise
            half = len(entries) // 2
            unfinished = unfinished_record(record, entries)
            await self.write(lane, range_id, entries[:half], unfinished)
            await self.write(lane, range_id, entries[half:], record)

    def _write(
        self, lane: LaneKey, range_id: int, entries: Sequence[Trigger], record: LaneRecord
    ) -> Steps[None]:
        yield from self._fenced(lane, range_id)
        if entries:
            yield self._insertion(lane, entries)
        yield from self._keep_record(lane, _encode(record).decode())

    def _keep_record(self, lane: LaneKey, record: str) -> Steps[None]:
        yield self._statement("keep_record", *lane, record)

    @abstractmethod
    def _insertion(self, lane: LaneKey, entries: Sequence[Trigger]) -> Statement | Many:
        """Return the statement that inserts rows, and leaves rows that exist."""

    def _fenced(self, lane: LaneKey, range_id: int) -> Steps[None]:
        rows = yield self._statement("fence", lane.queue, lane.partition)
        current, server = rows[0] if rows else (None, "")
        partition = PartitionKey(lane.queue, lane.partition)
        if reason := self._fences.void(partition, range_id, current, server):
            raise Fenced(reason)

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        rows = await self._database.read(self._rows("read_above", *lane, *level, limit))
        return triggers_of(lane, rows)

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        # Need not be durable: rows that come back after a power cut are deleted again.
        await self._database.run_async(self._delete_through(lane, range_id, level), durable=False)
        self._deleted[lane] = range_id, level

    def _delete_through(self, lane: LaneKey, range_id: int, level: Level) -> Steps[None]:
        yield from self._fenced(lane, range_id)
        # Beside an open transaction, the deleted rows of earlier calls would be read again. No row
        # comes at or below the ack level, and a power cut voids the range id.
        its_range_id, above = self._deleted.get(lane, (range_id, LOWEST))
        if its_range_id != range_id:
            above = LOWEST
        yield self._statement("delete_through", *lane, *above, *level)

    async def entries(self, lane: LaneKey, above: Level, task_ids: Sequence[str]) -> list[Trigger]:
        ids = batch([canonical(task_id) for task_id in task_ids])
        rows = await self._database.read(self._rows("entries", ids, *lane, *above))
        return triggers_of(lane, rows)

    async def records(self) -> dict[PartitionKey, OwnedBacklog]:
        return await self._database.read(self._records())

    def _records(self) -> Steps[dict[PartitionKey, OwnedBacklog]]:
        found: dict[PartitionKey, tuple[int, list[tuple[int, str]]]] = {}
        for queue, partition, range_id, priority, record in (yield self._statement("owners")):
            _, rows = found.setdefault(PartitionKey(queue, partition), (range_id, []))
            if priority is not None:
                rows.append((priority, record))
        return {key: _owned(key, range_id, rows) for key, (range_id, rows) in found.items()}

    async def ahead(
        self, lane: LaneKey, above: Level, below: Level = HIGHEST, most: int | None = None
    ) -> tuple[int, int]:
        params = (*lane, *above, *below, ALL_ROWS if most is None else most)
        tasks, keys = (await self._database.read(self._rows("ahead", *params)))[0]
        return tasks, keys

    async def close(self) -> None:
        await self._database.close_async()

    def _rows(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        return (yield self._statement(name, *params))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def unfinished_record(record: LaneRecord, entries: Sequence[Trigger]) -> LaneRecord:
    """Return the record to save with the first of several pieces of a write of `entries`: if the
    owner dies before the last piece, the channel brings all of them again. The record has its final
    max_level already."""
    first = min((entry.seq for entry in entries), default=0)
    return msgspec.structs.replace(record, read_seq=min(record.read_seq, max(first - 1, 0)))


def _owned(key: PartitionKey, range_id: int, rows: Iterable[tuple[int, str]]) -> OwnedBacklog:
    return OwnedBacklog(range_id, read_lanes(rows, "fairlead_backlog_lanes", key))


def columns(entry: Trigger) -> Row:
    """Return the parameters of an insert that follow those of the lane, in the order of the columns
    of a read."""
    return (
        *(entry.level or ()),
        entry.id,
        entry.version,
        entry.name,
        entry.fairness_key,
        entry.weight,
        entry.ordering_key,
        entry.seq,
        entry.order_at,
    )


def triggers_of(lane: LaneKey, rows: Iterable[Row]) -> list[Trigger]:
    """Return the entries of a lane from rows of its store."""
    one = shared()
    return [
        Trigger(
            str(task_id),
            version,
            lane.queue,
            lane.partition,
            one(name),
            lane.priority,
            one(key),
            weight,
            ordering_key and one(ordering_key),
            TriggerPath.SPILL,
            seq,
            Level(pass_, number),
            order_at,
        )
        for pass_, number, task_id, version, name, key, weight, ordering_key, seq, order_at in rows
    ]
