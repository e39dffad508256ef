"""The schedule store on Cassandra: rows and completions by the hour, and the history of attempts in
the SQL tables of the task store.

**If two owners write the same cell, the later owner's value wins.** A take-over raises the range id
by a lightweight transaction. Every other write has the timestamp (range id << 32) + n, where n
grows with each call of the owner. An owner checks that no take-over has happened before it writes,
so that a former owner stops. The owner checks again after it has written data that the log may then
drop, so that a later owner can read every confirmed write. Late writes of a former owner do no
harm:

- A task row: the owner did not confirm the write, so the log still has the task. If a later owner
  has since deleted or written the row, its cells have later timestamps and win. Otherwise the row
  is an unfinished task like any other.
- A retry: the cell contains the task id, and a later retry of the same task wins.
- A completion: the run has ended with success. At worst the later owner has already read the row,
  and runs the task a second time.
- A record: it stays until the later owner saves one. Its low-water mark is below all tasks that
  were unfinished when it was written; each task submitted below the mark since then was stored
  together with a newer record.
- A deletion: it deletes rows that were completed when it was written. Rows that the later owner has
  written in the same range have later timestamps and stay. In the same way, a row that its owner
  writes late, below the low-water mark, has a greater n than the deletion and stays.

**An owner deletes ranges of rows, not single rows**: all rows through the low-water mark, and rows
between unfinished tasks (`keep`). So a read meets few tombstones. The write of a completion also
marks the row as `done` until a range deletes it.

**With two datacentres** at LOCAL_QUORUM, a transaction in one may not see a transaction in the
other. Range ids are therefore seconds, so the later of two take-overs that are a second apart has
the greater id. A read of the schedule is whole if it has the writes of every datacentre (see
`datacentres.py`). After a read that is not whole, the owner neither raises the low-water mark nor
deletes rows. When all datacentres respond again, the owner fails on purpose, so that it loads the
partition again from the last safe low-water mark, with the tasks that only the missing datacentre
had.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import TypeVar

import msgspec

from fairlead.backends.cassandra.datacentres import Datacentres
from fairlead.backends.cassandra.owner import ScheduleOwner, next_range_id
from fairlead.backends.cassandra.session import (
    MOST_BYTES,
    CassandraSession,
    CassandraUrl,
    bytes_of,
    chunks,
)
from fairlead.backends.sql.schedule import append_attempts
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import MICROS
from fairlead.errors import StoreUnavailable
from fairlead.model import NewTask, PartitionKey, RunEnd, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import HOUR, Fenced, Owned, ScheduleStatus, hour_of
from fairlead.ports.statements import Row

OVERLAP = 600 * MICROS
"""Microseconds below the saved low-water mark at which an owner begins to read, if its reads or the
former owner's reads are not whole. Another datacentre may have stored a lower mark, and late tasks
below the mark."""

CLEANED_AT_ONCE = 100
"""Hours that one `clean` deletes at most."""

_AT_ONCE = 32
"""Concurrent statements of one call."""
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
    """A `fairlead.ports.schedule_store.ScheduleStore` on Cassandra, connected at its first use.

    Only owners that have taken over through this object can write through it.
    """

    def __init__(self, url: str, tasks: SqlTaskStore) -> None:
        """Open no connection yet. `tasks` has the history. Raise ConfigurationError."""
        self.session = CassandraSession(
            CassandraUrl.parse(url), "schedule.cql", _SCHEMA, _FAR_HOSTS
        )
        self._datacentres = Datacentres(self.session)
        self._history = tasks.database
        self._sql = load("schedule.sql", package_of(tasks.database))
        self._owners: dict[PartitionKey, ScheduleOwner] = {}

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
        self._owners[partition] = ScheduleOwner(
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
            held = found[-1] if found else None  # another owner was faster, or there was one before

    async def persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> set[TaskKey]:
        owner = self._owner(partition, range_id)
        stamp, record = owner.stamp(), owner.safe_record(record, tasks)
        rows = [(ScheduledTask.of(task).key, task.id, _encode(task).decode()) for task in tasks]
        completed, _ = await asyncio.gather(
            self._completed(partition, [row[0] for row in rows]), self._check_fence(owner)
        )
        new = [row for row in rows if row[0] not in completed]
        unnoted = owner.hours_to_note({hour_of(key) for key, _, _ in new})
        kept = [
            ("keep", (stamp, _encode(record).decode(), owner.is_whole, *partition)),
            *(("note_hour", (*partition, hour, stamp)) for hour in unnoted),
        ]
        inserts = (
            (
                hour_of(key),
                "persist",
                (*partition, hour_of(key), *key, task_id, task, stamp),
                bytes_of(task_id, task, *key),
            )
            for key, task_id, task in new
        )
        await self._write([kept, *_batches(inserts)])
        await self._check_fence(owner)
        owner.on_saved(record)
        owner.hours.update(dict.fromkeys(unnoted, 0))
        return completed

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        owner = self._owner(partition, range_id)
        stamp = owner.stamp()
        await asyncio.gather(
            self._history.run_async(append_attempts(self._sql, ends)), self._check_fence(owner)
        )
        writes: list[tuple[int, str, Row, int]] = []
        finished: dict[int, int] = {}
        for end in ends:
            key, task_id = end.scheduled.key, end.scheduled.task.id
            hour = hour_of(key)
            row = (*partition, hour, *key)
            size = bytes_of(*key)
            if end.completes:
                writes.append((hour, "complete", (*row, end.finished_at, stamp), size))
                writes.append((hour, "mark_done", (stamp, *row), size))
                finished[hour] = max(end.finished_at, finished.get(hour, 0))
            else:
                runs = _encode((task_id, end.attempt, end.tries, end.retry_at)).decode()
                writes.append((hour, "try_again", (stamp, runs, *row), size + bytes_of(runs)))
        unnoted = owner.ends_to_note(finished)
        noted = [("note_finished", (*partition, hour, at, stamp)) for hour, at in unnoted.items()]
        await self._write([*([noted] if noted else []), *_batches(writes)])
        await self._check_fence(owner)
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
        stamp, record = owner.stamp(), owner.safe_record(record)
        await self._check_fence(owner)
        await self.session.batch(
            [("keep", (stamp, _encode(record).decode(), owner.is_whole, *partition))]
        )
        owner.on_saved(record)
        if owner.is_whole:
            await self._sweep(owner, stamp, done)
        await self._restart_when_whole(owner)

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        """Delete whole hours below the low-water mark whose tasks were completed before `before`.

        Return the number of hours.
        """
        owner = self._owner(partition, range_id)
        stamp = owner.stamp()
        await self._check_fence(owner)
        await self._restart_when_whole(owner)
        if not owner.is_whole:
            return 0
        below = min(hour_of(owner.low_water_mark), before // HOUR)
        rows = await self.session.execute("finished_hours", *partition, below)
        old = [hour for hour, at in rows if (at or 0) + HOUR < before][:CLEANED_AT_ONCE]
        await self._write(
            [(name, (stamp, *partition, hour)) for name in ("sweep_hour", "drop_completions")]
            for hour in old
        )
        if old:
            await self.session.batch([("drop_hour", (stamp, *partition, hour)) for hour in old])
        for hour in old:
            owner.hours.pop(hour, None)
        return len(old)

    def _owner(self, partition: PartitionKey, range_id: int) -> ScheduleOwner:
        owner = self._owners.get(partition)
        if owner is None or owner.range_id != range_id:
            raise _fenced(partition, range_id)
        return owner

    async def _check_fence(self, owner: ScheduleOwner) -> None:
        """Raise Fenced if there was a later take-over."""
        rows = await self.session.execute("range_id", *owner.partition)
        found = rows[0][0] if rows else 0
        if found > owner.range_id:
            raise _fenced(owner.partition, owner.range_id)
        if found < owner.range_id:
            raise StoreUnavailable(
                f"{self.location}: this datacentre has range id {found} of {owner.partition},"
                f" which is {owner.range_id} elsewhere: wait until it has caught up"
            )

    async def _restart_when_whole(self, owner: ScheduleOwner) -> None:
        if not owner.is_whole and await self._datacentres.are_back("range_id", *owner.partition):
            raise StoreUnavailable(
                f"{self.location}: every datacentre responds again; {owner.partition} is loaded"
                " again, from its last safe low-water mark"
            )

    async def _sweep(
        self, owner: ScheduleOwner, stamp: int, done: Iterable[tuple[TaskKey, TaskKey]]
    ) -> None:
        """Delete the rows through the low-water mark, and between the keys of `done` in hours with
        new completions."""
        partition, low_water_mark = owner.partition, owner.low_water_mark
        deletions: list[tuple[int, str, Row, int]] = []
        if low_water_mark > owner.swept:
            last = hour_of(low_water_mark)
            if (first := hour_of(owner.swept)) < last:
                hours = await self.session.execute("hours", *partition, first, last - 1)
                deletions += [
                    (hour, "sweep_hour", (stamp, *partition, hour), 0) for (hour,) in hours
                ]
            deletions.append((last, "sweep_through", (stamp, *partition, last, *low_water_mark), 0))
        for above, below in done:
            for hour in owner.completed_in:
                low, high = (
                    max(above, TaskKey(hour * HOUR, "", "")),
                    min(below, TaskKey((hour + 1) * HOUR, "", "")),
                )
                if low < high:
                    deletions.append((hour, "sweep", (stamp, *partition, hour, *low, *high), 0))
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
            for some in chunks(of_hour, _KEYS_AT_ONCE)
        )
        return {TaskKey(*row) for rows in found for row in rows}

    async def _together(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """Return the results of all calls; at most _AT_ONCE run concurrently."""
        return [
            result for some in chunks(calls, _AT_ONCE) for result in await asyncio.gather(*some)
        ]

    # reading --------------------------------------------------------------------------------------

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
    ) -> list[ScheduledTask]:
        """Read a page. With an `ordering_key`, the server scans the rows of all keys."""
        return await self._read(partition, after, through, limit, ordering_key, None)

    async def traced_read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
    ) -> tuple[list[ScheduledTask], int]:
        """Read as `read` does, and return also the number of tombstones that its requests scanned.

        Raise StoreUnavailable, also if a trace is late.
        """
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
        # By key, because rows come again when a datacentre stops responding.
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
        """Count the unfinished tasks of a queue that are due or have run, by a scan of due hours.

        A task that has run early, by a clock that was set back, counts when its hour is due.
        """
        records = await self._records(queue)
        left = await self._together(
            self._all_left(PartitionKey(queue, partition), record.low_water_mark, now // HOUR)
            for partition, record in records.items()
        )
        return sum(key.run_at <= now or has_run for keys in left for key, has_run in keys)

    async def has_due(self, queue: str, now: int) -> bool:
        """Return whether a task is due, by a scan of due hours that ends at the first one."""
        for partition, record in (await self._records(queue)).items():
            key = PartitionKey(queue, partition)
            async for left, _ in self._left(key, record.low_water_mark, now // HOUR):
                if left.run_at <= now:
                    return True
        return False

    async def statuses(self, queue: str, stale_before: int) -> dict[int, ScheduleStatus]:
        """Return the status of each partition, by a scan of its unfinished tasks."""
        records = await self._records(queue)
        owned = [row async for row in self.session.rows("owners") if row[0] == queue]
        found = {}
        for _, partition, range_id in owned:
            record = records.get(partition, ScheduleRecord())
            keys = [
                key
                for key, _ in await self._all_left(
                    PartitionKey(queue, partition), record.low_water_mark, _LAST_HOUR
                )
            ]
            stale = sum(key.run_at < stale_before for key in keys)
            found[partition] = ScheduleStatus(
                range_id, record, len(keys), stale, min(keys, default=None)
            )
        return found

    async def close(self) -> None:
        """Close the connections to Cassandra; a later call opens new ones. The owner of the task
        store closes that."""
        await self.session.close()

    async def _records(self, queue: str) -> dict[int, ScheduleRecord]:
        return {
            row[1]: _record.decode(row[2])
            async for row in self.session.rows("records")
            if row[0] == queue
        }

    async def _all_left(
        self, partition: PartitionKey, mark: TaskKey, last: int
    ) -> list[tuple[TaskKey, bool]]:
        return [each async for each in self._left(partition, mark, last)]

    async def _left(
        self, partition: PartitionKey, mark: TaskKey, last: int
    ) -> AsyncIterator[tuple[TaskKey, bool]]:
        """Yield the unfinished keys above the low-water mark, through hour `last`, each with
        whether its task has run."""
        for (hour,) in await self.session.execute("hours", *partition, hour_of(mark), last):
            async for *key, task_id, runs, is_done in self.session.rows(
                "unfinished", *partition, hour, *mark
            ):
                if task_id is not None and not is_done:
                    yield TaskKey(*key), _runs_of(task_id, runs) is not None


def _fenced(partition: PartitionKey, range_id: int) -> Fenced:
    return Fenced(
        f"partition {partition.partition} of {partition.queue} was taken over: range id {range_id}"
        " is void"
    )


def _batches(writes: Iterable[tuple[int, str, Row, int]]) -> list[list[tuple[str, Row]]]:
    """Return batches of the writes of one hour, each of at most MOST_BYTES. A write is (hour,
    statement, parameters, bytes of its texts)."""
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


def _runs_of(task_id: str, runs: str | None) -> tuple[int, int, int | None] | None:
    """Return (attempt, tries, retry_at) of a task, or None if it has not run."""
    if runs is None:
        return None
    of, attempt, tries, retry_at = _runs.decode(runs)
    return (attempt, tries, retry_at) if of == task_id else None


def _scheduled(row: Row) -> ScheduledTask | None:
    """Return the task of a row, or None if it is completed, or if only the runs of a deleted task
    are left of it."""
    run_at, ordering_key, unique_key, task_id, task, runs, is_done = row
    if is_done or task_id is None:
        return None
    key = TaskKey(run_at, ordering_key, unique_key)
    return ScheduledTask(key, _task.decode(task), *(_runs_of(task_id, runs) or ()))
