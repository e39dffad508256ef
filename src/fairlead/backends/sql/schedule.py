"""The schedule store over SQL, on SQLite and PostgreSQL.

Each write checks the fence in its own transaction. Keys begin with the time, so the B-tree keeps
the hours in order and no other buckets are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from fairlead.backends.sql.fences import Fences
from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sql.rows import batch, canonical
from fairlead.backends.sql.schedule_rows import decode_record, decode_task, moved_text
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.core.sharding.partitions import partition_of
from fairlead.model import (
    BEFORE_ALL,
    NEVER,
    AttemptRecord,
    NewTask,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    TaskKey,
)
from fairlead.model.columns import ATTEMPTS
from fairlead.ports.schedule_store import ANY_BYTES, Fenced, Moved, Owned, Page, ScheduleStatus
from fairlead.ports.statements import Row, Statement, Steps

CLEANED_AT_ONCE = 1000
"""Completed keys that one `clean` deletes at most."""

MOVED_AT_ONCE = 500
"""Rows that one step of `move_tasks` reads."""

_THROUGH = TaskKey(NEVER, "", "")

_RENAMED = {
    "task_id": "scheduled.task.id",
    "run_at": "scheduled.ready_at",
    "ready_at": "scheduled.ready_at",
    "claimed_at": "triggered_at",
}
_PATHS = [
    _RENAMED.get(name) or (name if hasattr(RunEnd, name) else f"scheduled.task.{name}")
    for name, *_ in ATTEMPTS
]
attempt_row: Callable[[RunEnd], Row] = attrgetter(*_PATHS)
"""Return the row of the history for `append_attempts`."""

_encode = msgspec.json.encode


def encode_record(record: ScheduleRecord) -> str:
    """Return the record as JSON text."""
    return _encode(record).decode()


class SqlScheduleStore:
    """A `fairlead.ports.schedule_store.ScheduleStore` in the database of a task store.

    The end of a run and its row of the history commit in one transaction.
    """

    def __init__(self, store: SqlTaskStore) -> None:
        self._database = store.database
        self._sql = load("schedule.sql", package_of(store.database))
        self._fences = Fences()

    @property
    def location(self) -> str:
        return self._database.location

    async def migrate(self) -> None:
        await asyncio.to_thread(migrate, self._database)

    async def prepare(self) -> None:
        """Do nothing: the task store, whose tables these are, was checked."""

    # the owner's side -----------------------------------------------------------------------------

    async def take_over(self, partition: PartitionKey) -> Owned:
        return await self._database.run_async(self._take_over(partition))

    def _take_over(self, partition: PartitionKey) -> Steps[Owned]:
        # The update waits for an unfinished write of the previous owner, so the record that is read
        # includes that write.
        new = encode_record(ScheduleRecord())
        range_id, record, server = (yield self._statement("take_over", *partition, new))[0]
        self._fences.taken(partition, range_id, server)
        return Owned(range_id, decode_record(partition, record))

    async def persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> set[TaskKey]:
        return await self._database.run_async(self._persist(partition, range_id, tasks, record))

    def _persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> Steps[set[TaskKey]]:
        yield from self._fenced(partition, range_id)
        yield from self._save(partition, record)
        rows = [(*_key(task), task.id, _encode(task).decode()) for task in tasks]
        keys = batch([row[:3] for row in rows])
        completed = {
            TaskKey(*row) for row in (yield self._statement("completed", *partition, keys))
        }
        if new := [row for row in rows if row[:3] not in completed]:
            yield self._statement("persist", *partition, batch(new))
        return completed

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        await self._database.run_async(self._finish(partition, range_id, ends))

    def _finish(
        self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]
    ) -> Steps[None]:
        yield from self._fenced(partition, range_id)
        yield from append_attempts(self._sql, [attempt_row(end) for end in ends])
        if over := [(*end.scheduled.key, end.finished_at) for end in ends if end.completes]:
            yield self._statement("complete", *partition, batch(over))
            yield self._statement("delete_completed", *partition, batch(over))
        if again := [
            (*end.scheduled.key, end.scheduled.task.id, end.attempt, end.tries, end.retry_at)
            for end in ends
            if not end.completes
        ]:
            yield self._statement("try_again", *partition, batch(again))

    async def move_attempts(self, partition: PartitionKey, range_id: int) -> None:
        """Do nothing: `finish` writes the history."""

    async def keep(
        self,
        partition: PartitionKey,
        range_id: int,
        record: ScheduleRecord,
        done: Sequence[tuple[TaskKey, TaskKey]] = (),
    ) -> None:
        # Completed rows were deleted by `finish`, so `done` is not used. Need not be durable: after
        # a power cut the low-water mark is lower, and more keys are read again.
        await self._database.run_async(self._keep(partition, range_id, record), durable=False)

    def _keep(self, partition: PartitionKey, range_id: int, record: ScheduleRecord) -> Steps[None]:
        yield from self._fenced(partition, range_id)
        yield from self._save(partition, record)

    def _save(self, partition: PartitionKey, record: ScheduleRecord) -> Steps[None]:
        yield self._statement("keep", *partition, encode_record(record))

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        return await self._database.run_async(
            self._clean(partition, range_id, before), durable=False
        )

    def _clean(self, partition: PartitionKey, range_id: int, before: int) -> Steps[int]:
        yield from self._fenced(partition, range_id)
        # A key due at or after `before` stays: a person may have ended its task before it was due.
        through = TaskKey(before, "", "")
        return len((yield self._statement("clean", *partition, *through, before, CLEANED_AT_ONCE)))

    async def move_tasks(
        self, source: PartitionKey, range_ids: Mapping[int, int], partitions: int, after: Any
    ) -> Moved:
        step, key = after or ("tasks", BEFORE_ALL)
        moving = self._move_page if step == "tasks" else self._move_completed
        moved, last = await self._database.run_async(moving(source, range_ids, partitions, key))
        if step == "tasks":
            return Moved(moved, 0, ("completed", BEFORE_ALL) if last is None else (step, last))
        return Moved(0, moved, None if last is None else (step, last))

    def _move_page(
        self, source: PartitionKey, range_ids: Mapping[int, int], partitions: int, after: TaskKey
    ) -> Steps[tuple[int, TaskKey | None]]:
        rows = yield self._statement("read", *source, *after, *_THROUGH, MOVED_AT_ONCE, ANY_BYTES)
        moved = [
            (target, *row[:3], moved_text(row[4], target))
            for row in rows
            if (target := partition_of(row[1], 0, partitions)) != source.partition
        ]
        if moved:
            yield from self._all_fenced(source, range_ids, {row[0] for row in moved})
            yield self._statement("move_tasks", *source, batch(moved))
        return len(moved), TaskKey(*rows[-1][:3]) if rows else None

    def _move_completed(
        self, source: PartitionKey, range_ids: Mapping[int, int], partitions: int, after: TaskKey
    ) -> Steps[tuple[int, TaskKey | None]]:
        rows = yield self._statement("completions", *source, *after, MOVED_AT_ONCE)
        moved = [
            (target, *row)
            for row in rows
            if (target := partition_of(row[1], 0, partitions)) != source.partition
        ]
        if moved:
            yield from self._all_fenced(source, range_ids, {row[0] for row in moved})
            yield self._statement("move_completed", source.queue, batch(moved))
            yield self._statement("delete_moved", *source, batch(moved))
        return len(moved), TaskKey(*rows[-1][:3]) if rows else None

    def _all_fenced(
        self, source: PartitionKey, range_ids: Mapping[int, int], targets: set[int]
    ) -> Steps[None]:
        for number in sorted({source.partition, *targets}):
            yield from self._fenced(PartitionKey(source.queue, number), range_ids[number])

    def _fenced(self, partition: PartitionKey, range_id: int) -> Steps[None]:
        rows = yield self._statement("fence", *partition)
        current, server = rows[0] if rows else (None, "")
        if reason := self._fences.void(partition, range_id, current, server):
            raise Fenced(reason)

    # reading --------------------------------------------------------------------------------------

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
        most_bytes: int = ANY_BYTES,
    ) -> Page:
        params = (*partition, *after, *through, limit, most_bytes)
        if ordering_key is None:
            rows = await self._database.read(self._rows("read", *params))
        else:
            rows = await self._database.read(self._rows("read_of", *params, ordering_key))
        whole = [row for row in rows if row[4] is not None]
        tasks = [_scheduled(partition, row) for row in whole]
        return Page(tasks, len(whole) < len(rows))

    async def find(self, partition: PartitionKey, key: TaskKey) -> ScheduledTask | None:
        rows = await self._database.read(self._rows("find", *partition, *key))
        return _scheduled(partition, rows[0]) if rows else None

    def find_now(self, task_id: str) -> ScheduledTask | None:
        rows = self._database.read_now(self._rows("find_id", canonical(task_id)))
        return _scheduled(PartitionKey(*rows[0][:2]), rows[0][2:]) if rows else None

    async def now(self) -> int | None:
        if "clock" not in self._sql:
            return None
        instant: int = (await self._database.read(self._rows("clock")))[0][0]
        return instant

    async def unfinished(self, queue: str, now: int) -> int:
        count: int = (await self._database.read(self._rows("unfinished", queue, now)))[0][0]
        return count

    async def has_due(self, queue: str, now: int) -> bool:
        return await self._database.read(self._has_due(queue, now))

    def _has_due(self, queue: str, now: int) -> Steps[bool]:
        return bool((yield self._statement("has_due", queue, now))[0][0])

    async def statuses(self, queue: str, stale_before: int) -> dict[int, ScheduleStatus]:
        return await self._database.read(self._statuses(queue, stale_before))

    def _statuses(self, queue: str, stale_before: int) -> Steps[dict[int, ScheduleStatus]]:
        found = {}
        for partition, range_id, record, unfinished, stale in (
            yield self._statement("statuses", queue, stale_before)
        ):
            oldest = yield self._statement("oldest", queue, partition)
            first = TaskKey(*oldest[0]) if oldest else None
            found[partition] = ScheduleStatus(
                range_id,
                decode_record(PartitionKey(queue, partition), record),
                unfinished,
                stale,
                first,
            )
        return found

    async def close(self) -> None:
        """Do nothing: the task store closes the database."""

    def _rows(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        return (yield self._statement(name, *params))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def append_attempts(sql: Mapping[str, str], rows: Sequence[Row]) -> Steps[None]:
    """Append runs to the history, each run once even if its end is reported twice. No other
    transaction may append the same runs at the same time.

    `sql` has the statements of the dialect's schedule.sql.
    """
    yield Statement(sql["append_attempts"], (batch(rows),))


def append_unfenced(sql: Mapping[str, str], rows: Sequence[Row]) -> Steps[None]:
    """Append runs of one partition as `append_attempts` does. Wait first until the transactions
    end that append others of the partition: one whose commit hung may have the same runs."""
    if rows and "wait_for_appends" in sql:
        first = AttemptRecord(0, *rows[0])
        yield Statement(sql["wait_for_appends"], (first.queue, first.partition))
    yield from append_attempts(sql, rows)


def _key(task: NewTask) -> TaskKey:
    return TaskKey(task.run_at, task.ordering_key or "", task.unique_key or "")


def _scheduled(partition: PartitionKey, row: Row) -> ScheduledTask:
    run_at, ordering_key, unique_key, task_id, task, attempt, tries, retry_at = row
    key = TaskKey(run_at, ordering_key, unique_key)
    return decode_task(partition, key, task_id, task, lambda: (attempt, tries, retry_at))
