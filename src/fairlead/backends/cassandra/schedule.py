"""The schedule store on Cassandra: rows and completions by the hour, and the history of attempts in
the task store's SQL.

**Of two owners only the later one's writes count, cell by cell.** A range id is raised by a
lightweight transaction; every other write bears the timestamp (range id << 32) + n, n ascending
with the calls of the owner. An owner also looks whether it still is the owner: before it writes, so
that it stops, and after it has written what the log may forget then, so that what was answered was
there before a later owner could read. What lands late of a former owner:

- a row: it was not answered, so the log still has the task. If its key was swept or persisted
  again, those cells are later. Else it is an unfinished task as any other.
- a retry: it bears the id of its task, and a later note of the same task counts instead.
- a completion: its run has ended well. At worst the later owner has read the row before, and runs
  it once more.
- a record: it counts until the later owner keeps one. Its floor lies below all that was unfinished
  then, and what came below it since came with a record.
- a deletion: of what was done then. What the later owner has written there is later, so it stays.
  The same holds within the life of one owner for a task that is submitted late, below the floor: it
  has the later n.

**Rows are not deleted one by one** but through the floor and between unfinished tasks (`keep`), so
a read meets few tombstones. Until then a row that is completed says so itself (`done`), in the same
write as its completion.

**Two datacentres** at LOCAL_QUORUM: transactions of one may not know those of the other, so range
ids are seconds, and of two take-overs a second apart the later one has the greater. A read of the
schedule is whole (see `cassandra_datacentres`); when it cannot be, its owner keeps no higher floor
and deletes nothing from then on, and once all datacentres answer again it fails on purpose: the
partition is loaded anew from the floor before, and finds what only the one that was away knew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from fairlead.backends.cassandra.datacentres import Datacentres
from fairlead.backends.cassandra.owner import Owner, next_range_id
from fairlead.backends.cassandra.session import MOST_BYTES, CassandraSession, CassandraUrl
from fairlead.backends.sql.schedule import append_attempts
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import MICROS
from fairlead.errors import StoreUnavailable
from fairlead.model import NewTask, PartitionKey, RunEnd, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import HOUR, Fenced, Owned, ScheduleStatus, hour_of
from fairlead.ports.statements import Row

OVERLAP = 600 * MICROS
"""So far below the kept floor an owner begins that cannot ask every datacentre, or comes after one
that could not: a lower floor, with tasks submitted late below it, may be known to another one
only."""

CLEANED_AT_ONCE = 100
"""Hours."""

_AT_ONCE = 32
"""Statements on their way, of one call."""
_KEYS_AT_ONCE = 500
_LEAST_PAGE = 200
_ROW_BYTES = 100
_LAST_HOUR = 1 << 62
_FAR_HOSTS = 8
_SCHEMA = (
    "create_owners",
    "create_records",
    "create_hours",
    "create_schedule",
    "create_completions",
)

T = TypeVar("T")
_record = msgspec.json.Decoder(ScheduleRecord)
_task = msgspec.json.Decoder(NewTask)
_runs = msgspec.json.Decoder(tuple[str, int, int, int | None])
_encode = msgspec.json.encode


class CassandraScheduleStore:
    """See `fairlead.ports.schedule_store.ScheduleStore`. It connects when it is first used, and
    writes for owners that have taken over by itself."""

    def __init__(self, url: str, tasks: SqlTaskStore) -> None:
        """`tasks`: has the history. Raises ConfigurationError."""
        self.session = CassandraSession(
            CassandraUrl.parse(url), "schedule.cql", _SCHEMA, _FAR_HOSTS
        )
        self._datacentres = Datacentres(self.session)
        self._history = tasks.database
        self._sql = load("schedule.sql", package_of(tasks.database))
        self._owners: dict[PartitionKey, Owner] = {}

    @property
    def location(self) -> str:
        return self.session.url.location

    async def migrate(self) -> None:
        await self.session.migrate()

    # the owner's side -----------------------------------------------------------------------------

    async def take_over(self, partition: PartitionKey) -> Owned:
        range_id = await self._raise(partition)
        reading = self._datacentres.reading()
        rows = [row async for row in reading.rows("record", *partition)]
        record, was_whole = (
            (_record.decode(rows[-1][0]), rows[-1][1]) if rows else (ScheduleRecord(), True)
        )
        mark = begins = record.low_water_mark
        if not (was_whole and reading.is_whole):
            begins = TaskKey(mark.run_at - OVERLAP, "", "")
        self._owners[partition] = Owner(
            partition, range_id, record.low_water_mark, begins, reading.is_whole
        )
        return Owned(range_id, msgspec.structs.replace(record, low_water_mark=begins))

    async def _raise(self, partition: PartitionKey) -> int:
        before = self._owners.get(partition)
        mine = 0 if before is None else before.range_id
        held = None
        while True:
            range_id = next_range_id(held or 0, mine)
            applied, *found = (
                await self.session.batch([("raise_range_id", (range_id, *partition, held))])
            )[0]
            if applied:
                return range_id
            held = found[-1] if found else None  # another was faster, or it was owned before

    async def persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> set[TaskKey]:
        owner = self._owner(partition, range_id)
        stamp, record = owner.stamp(), owner.sure(record, tasks)
        rows = [(ScheduledTask.of(task).key, task.id, _encode(task).decode()) for task in tasks]
        completed, _ = await asyncio.gather(
            self._completed(partition, [row[0] for row in rows]), self._look(owner)
        )
        new = [row for row in rows if row[0] not in completed]
        unnoted = owner.unnoted({hour_of(key) for key, _, _ in new})
        kept = [
            ("keep", (stamp, _encode(record).decode(), owner.is_whole, *partition)),
            *(("note_hour", (*partition, hour, stamp)) for hour in unnoted),
        ]
        inserts = (
            (
                hour_of(key),
                "persist",
                (*partition, hour_of(key), *key, task_id, task, stamp),
                len(task),
            )
            for key, task_id, task in new
        )
        await self._write([kept, *_batches(inserts)])
        await self._look(owner)
        owner.kept(record)
        owner.hours.update(dict.fromkeys(unnoted, 0))
        return completed

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        owner = self._owner(partition, range_id)
        stamp = owner.stamp()
        await asyncio.gather(
            self._history.run_async(append_attempts(self._sql, ends)), self._look(owner)
        )
        writes: list[tuple[int, str, Row, int]] = []
        finished: dict[int, int] = {}
        for end in ends:
            key, task_id = end.scheduled.key, end.scheduled.task.id
            hour = hour_of(key)
            place = (*partition, hour, *key)
            if end.completes:
                writes.append((hour, "complete", (*place, end.finished_at, stamp), 0))
                writes.append((hour, "mark_done", (stamp, *place), 0))
                finished[hour] = max(end.finished_at, finished.get(hour, 0))
            else:
                runs = _encode((task_id, end.attempt, end.tries, end.retry_at)).decode()
                writes.append((hour, "try_again", (stamp, runs, *place), 0))
        unnoted = owner.unnoted_ends(finished)
        noted = [("note_finished", (*partition, hour, at, stamp)) for hour, at in unnoted.items()]
        await self._write([*([noted] if noted else []), *_batches(writes)])
        await self._look(owner)
        owner.hours.update(unnoted)
        owner.completed_in.update(finished)

    async def keep(
        self,
        partition: PartitionKey,
        range_id: int,
        record: ScheduleRecord,
        done: Sequence[tuple[TaskKey, TaskKey]] = (),
    ) -> None:
        owner = self._owner(partition, range_id)
        stamp, record = owner.stamp(), owner.sure(record)
        await self._look(owner)
        await self.session.batch(
            [("keep", (stamp, _encode(record).decode(), owner.is_whole, *partition))]
        )
        owner.kept(record)
        if owner.is_whole:
            await self._sweep(owner, stamp, done)
        await self._find_back(owner)

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        """By whole hours that lie below the floor and of which nothing was completed since; answers
        how many hours."""
        owner = self._owner(partition, range_id)
        stamp = owner.stamp()
        await self._look(owner)
        await self._find_back(owner)
        if not owner.is_whole:
            return 0
        below = min(hour_of(owner.low_water_mark), before // HOUR)
        rows = await self.session.execute("finished_hours", *partition, below)
        old = [hour for hour, at in rows if (at or 0) + HOUR < before][:CLEANED_AT_ONCE]
        await self._write(
            [(name, (stamp, *partition, hour)) for name in ("sweep_hour", "forget_completions")]
            for hour in old
        )
        if old:
            await self.session.batch([("forget_hour", (stamp, *partition, hour)) for hour in old])
        for hour in old:
            owner.hours.pop(hour, None)
        return len(old)

    def _owner(self, partition: PartitionKey, range_id: int) -> Owner:
        owner = self._owners.get(partition)
        if owner is None or owner.range_id != range_id:
            raise _fenced(partition, range_id)
        return owner

    async def _look(self, owner: Owner) -> None:
        """Raises Fenced if there was a take-over since."""
        rows = await self.session.execute("range_id", *owner.partition)
        found = rows[0][0] if rows else 0
        if found > owner.range_id:
            raise _fenced(owner.partition, owner.range_id)
        if found < owner.range_id:
            raise StoreUnavailable(
                f"{self.location}: this datacentre knows range id {found} of {owner.partition},"
                f" which is {owner.range_id} by now: it has not caught up"
            )

    async def _find_back(self, owner: Owner) -> None:
        if not owner.is_whole and await self._datacentres.are_back("range_id", *owner.partition):
            raise StoreUnavailable(
                f"{self.location}: every datacentre answers again; {owner.partition} is loaded"
                " anew, from the floor that was sure before"
            )

    async def _sweep(
        self, owner: Owner, stamp: int, done: Iterable[tuple[TaskKey, TaskKey]]
    ) -> None:
        """Delete the rows through the floor, and between these keys in the hours in which something
        was completed since."""
        place, low_water_mark = owner.partition, owner.low_water_mark
        deletions: list[tuple[int, str, Row, int]] = []
        if low_water_mark > owner.swept:
            last = hour_of(low_water_mark)
            if (first := hour_of(owner.swept)) < last:
                hours = await self.session.execute("hours", *place, first, last - 1)
                deletions += [(hour, "sweep_hour", (stamp, *place, hour), 0) for (hour,) in hours]
            deletions.append((last, "sweep_through", (stamp, *place, last, *low_water_mark), 0))
        for above, below in done:
            for hour in owner.completed_in:
                low, high = (
                    max(above, TaskKey(hour * HOUR, "", "")),
                    min(below, TaskKey((hour + 1) * HOUR, "", "")),
                )
                if low < high:
                    deletions.append((hour, "sweep", (stamp, *place, hour, *low, *high), 0))
        owner.completed_in.clear()
        await self._write(_batches(deletions))
        owner.swept = low_water_mark

    async def _write(self, batches: Iterable[Sequence[tuple[str, Row]]]) -> None:
        await self._together(self.session.batch(batch) for batch in batches)

    async def _completed(self, partition: PartitionKey, keys: Iterable[TaskKey]) -> set[TaskKey]:
        by_hour: dict[int, list[TaskKey]] = {}
        for key in keys:
            by_hour.setdefault(hour_of(key), []).append(key)
        found = await self._together(
            self.session.execute("completed", *partition, hour, list(some))
            for hour, of_hour in by_hour.items()
            for some in _some(of_hour, _KEYS_AT_ONCE)
        )
        return {TaskKey(*row) for rows in found for row in rows}

    async def _together(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """Their answers, with not too many on their way at once."""
        return [answer for some in _some(calls, _AT_ONCE) for answer in await asyncio.gather(*some)]

    # reading --------------------------------------------------------------------------------------

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
    ) -> list[ScheduledTask]:
        """Of one ordering key it walks the rows of all at the server."""
        return await self._read(partition, after, through, limit, ordering_key, None)

    async def traced_read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
    ) -> tuple[list[ScheduledTask], int]:
        """As `read`, and how many tombstones its requests have scanned. Raises StoreUnavailable,
        also when a trace is late."""
        scanned: list[int] = []
        return await self._read(partition, after, through, limit, ordering_key, scanned), sum(
            scanned
        )

    async def _read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None,
        scanned: list[int] | None,
    ) -> list[ScheduledTask]:
        reading = self._datacentres.reading()
        # By key, since rows come again when a datacentre stops answering.
        found: dict[TaskKey, ScheduledTask] = {}
        hours = {
            row[0]
            async for row in reading.rows(
                "hours", *partition, hour_of(after), hour_of(through), scanned=scanned
            )
        }
        for hour in sorted(hours):
            if len(found) < limit:
                bounds: Row = (*after, *through)
                if ordering_key is not None:
                    bounds = (after.run_at, through.run_at, ordering_key)
                name, page = "read" if ordering_key is None else "read_of", max(limit, _LEAST_PAGE)
                rows = reading.rows(name, *partition, hour, *bounds, page=page, scanned=scanned)
                async with contextlib.aclosing(rows):
                    async for row in rows:
                        scheduled = _scheduled(row)
                        if scheduled is not None and after < scheduled.key <= through:
                            found[scheduled.key] = scheduled
                            if len(found) == limit:
                                break
        owner = self._owners.get(partition)
        if owner is not None and not reading.is_whole:
            owner.is_whole = False
        return list(found.values())

    async def find(self, partition: PartitionKey, key: TaskKey) -> ScheduledTask | None:
        rows = [
            row
            async for row in self._datacentres.reading().rows(
                "find", *partition, hour_of(key), *key
            )
        ]
        return _scheduled(rows[-1]) if rows else None

    # for people -----------------------------------------------------------------------------------

    async def unfinished(self, queue: str, now: int) -> int:
        """Walks what is due. What has run before its time, by a clock that was set back, counts
        when that has come."""
        records = await self._records(queue)
        left = await self._together(
            self._left(PartitionKey(queue, partition), record.low_water_mark, now // HOUR)
            for partition, record in records.items()
        )
        return sum(key.run_at <= now or has_run for keys in left for key, has_run in keys)

    async def statuses(self, queue: str, stale_before: int) -> dict[int, ScheduleStatus]:
        """Walks what is unfinished."""
        records = await self._records(queue)
        owned = [row async for row in self.session.rows("owners") if row[0] == queue]
        found = {}
        for _, partition, range_id in owned:
            record = records.get(partition, ScheduleRecord())
            keys = [
                key
                for key, _ in await self._left(
                    PartitionKey(queue, partition), record.low_water_mark, _LAST_HOUR
                )
            ]
            stale = sum(key.run_at < stale_before for key in keys)
            found[partition] = ScheduleStatus(
                range_id, record, len(keys), stale, min(keys, default=None)
            )
        return found

    async def close(self) -> None:
        """Let go of the connections. It may be used again; the task store is closed by whoever
        opened it."""
        await self.session.close()

    async def _records(self, queue: str) -> dict[int, ScheduleRecord]:
        return {
            row[1]: _record.decode(row[2])
            async for row in self.session.rows("records")
            if row[0] == queue
        }

    async def _left(
        self, partition: PartitionKey, mark: TaskKey, last: int
    ) -> list[tuple[TaskKey, bool]]:
        """What is unfinished above the floor, through this hour, and whether it has run."""
        found = []
        for (hour,) in await self.session.execute("hours", *partition, hour_of(mark), last):
            async for *key, task_id, runs, is_done in self.session.rows(
                "look", *partition, hour, *mark
            ):
                if task_id is not None and not is_done:
                    found.append((TaskKey(*key), _runs_of(task_id, runs) is not None))
        return found


def _fenced(partition: PartitionKey, range_id: int) -> Fenced:
    return Fenced(
        f"partition {partition.partition} of {partition.queue} was taken over: range id {range_id}"
        " is void"
    )


def _batches(writes: Iterable[tuple[int, str, Row, int]]) -> list[list[tuple[str, Row]]]:
    """(hour, statement, its parameters, bytes of its texts): those of an hour together, MOST_BYTES
    at most."""
    batches: list[list[tuple[str, Row]]] = []
    latest: dict[int, tuple[int, list[tuple[str, Row]]]] = {}
    for hour, name, params, size in writes:
        room, batch = latest.get(hour, (0, []))
        if room < size + _ROW_BYTES:
            room, batch = MOST_BYTES, []
            batches.append(batch)
        batch.append((name, params))
        latest[hour] = (room - size - _ROW_BYTES, batch)
    return batches


def _some(values: Iterable[T], most: int) -> Iterator[list[T]]:
    left = iter(values)
    while some := list(islice(left, most)):
        yield some


def _runs_of(task_id: str, runs: str | None) -> tuple[int, int, int | None] | None:
    """(attempt, tries, retry_at) of this task; None if it has not run."""
    if runs is None:
        return None
    of, attempt, tries, retry_at = _runs.decode(runs)
    return (attempt, tries, retry_at) if of == task_id else None


def _scheduled(row: Row) -> ScheduledTask | None:
    """None for what is completed, and for what runs of a task have left behind that is no longer
    there."""
    run_at, ordering_key, unique_key, task_id, task, runs, is_done = row
    if is_done or task_id is None:
        return None
    key = TaskKey(run_at, ordering_key, unique_key)
    return ScheduledTask(key, _task.decode(task), *(_runs_of(task_id, runs) or ()))
