"""The schedule store over SQL, on SQLite and PostgreSQL: the fence is looked at in the transaction
of each write.

Keys begin with the time, so that a B-tree holds the hours in order: there are no buckets beside
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.model import NewTask, PartitionKey, RunEnd, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import Fenced, Owned, ScheduleStatus
from fairlead.ports.statements import Row, Statement, Steps

CLEANED_AT_ONCE = 1000

_record = msgspec.json.Decoder(ScheduleRecord)
_task = msgspec.json.Decoder(NewTask)
_encode = msgspec.json.encode


class SqlScheduleStore:
    """See `fairlead.ports.schedule_store.ScheduleStore`. It lives in the tables of a task store's
    database, where the history of attempts is too: a run's end and its row of the history commit
    together."""

    def __init__(self, store: SqlTaskStore) -> None:
        self._database = store.database
        self._sql = load("schedule.sql", package_of(store.database))

    @property
    def location(self) -> str:
        return self._database.location

    async def migrate(self) -> None:
        await asyncio.to_thread(migrate, self._database)

    # the owner's side -----------------------------------------------------------------------------

    async def take_over(self, partition: PartitionKey) -> Owned:
        return await self._database.run_async(self._take_over(partition))

    def _take_over(self, partition: PartitionKey) -> Steps[Owned]:
        # The update waits for a write of the owner before; what that one wrote is there when the
        # record is read.
        new = _encode(ScheduleRecord()).decode()
        range_id, record = (yield self._statement("take_over", *partition, new))[0]
        return Owned(range_id, _record.decode(record))

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
        yield self._statement("keep", *partition, _encode(record).decode())
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
        yield from append_attempts(self._sql, ends)
        if over := [(*end.scheduled.key, end.finished_at) for end in ends if end.completes]:
            yield self._statement("complete", *partition, batch(over))
            yield self._statement("delete_completed", *partition, batch(over))
        if again := [
            (*end.scheduled.key, end.scheduled.task.id, end.attempt, end.tries, end.retry_at)
            for end in ends
            if not end.completes
        ]:
            yield self._statement("try_again", *partition, batch(again))

    async def keep(
        self,
        partition: PartitionKey,
        range_id: int,
        record: ScheduleRecord,
        done: Sequence[tuple[TaskKey, TaskKey]] = (),
    ) -> None:
        # Rows went when they were completed. Not durable on its own: a floor that a power cut takes
        # back lies lower, and more is looked at again.
        await self._database.run_async(self._keep(partition, range_id, record), durable=False)

    def _keep(self, partition: PartitionKey, range_id: int, record: ScheduleRecord) -> Steps[None]:
        yield from self._fenced(partition, range_id)
        yield self._statement("keep", *partition, _encode(record).decode())

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        return await self._database.run_async(
            self._clean(partition, range_id, before), durable=False
        )

    def _clean(self, partition: PartitionKey, range_id: int, before: int) -> Steps[int]:
        record = yield from self._fenced(partition, range_id)
        through = min(record.low_water_mark, TaskKey(before, "", ""))
        return len((yield self._statement("clean", *partition, *through, before, CLEANED_AT_ONCE)))

    def _fenced(self, partition: PartitionKey, range_id: int) -> Steps[ScheduleRecord]:
        found = yield self._statement("fence", *partition)
        if not found or found[0][0] != range_id:
            raise Fenced(
                f"partition {partition.partition} of {partition.queue} was taken over: range id"
                f" {range_id} is void"
            )
        return _record.decode(found[0][1])

    # reading --------------------------------------------------------------------------------------

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
    ) -> list[ScheduledTask]:
        params = (*partition, *after, *through, limit)
        if ordering_key is None:
            rows = await self._database.read(self._rows("read", *params))
        else:
            rows = await self._database.read(self._rows("read_of", *params, ordering_key))
        return [_scheduled(row) for row in rows]

    async def find(self, partition: PartitionKey, key: TaskKey) -> ScheduledTask | None:
        rows = await self._database.read(self._rows("find", *partition, *key))
        return _scheduled(rows[0]) if rows else None

    async def unfinished(self, queue: str, now: int) -> int:
        count: int = (await self._database.read(self._rows("unfinished", queue, now)))[0][0]
        return count

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
                range_id, _record.decode(record), unfinished, stale, first
            )
        return found

    async def close(self) -> None:
        """The database is the task store's."""

    def _rows(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        return (yield self._statement(name, *params))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def append_attempts(sql: Mapping[str, str], ends: Sequence[RunEnd]) -> Steps[None]:
    """Put the runs into the history, each once however often its end is told. `sql`: statements of
    the dialect's file."""
    yield Statement(sql["append_attempts"], (batch([attempt_row(end) for end in ends]),))


def attempt_row(end: RunEnd) -> tuple[Any, ...]:
    """A row of the history, for `append_attempts`."""
    task, scheduled = end.scheduled.task, end.scheduled
    return (
        task.id,
        end.attempt,
        end.tries,
        task.queue,
        task.name,
        task.partition,
        task.priority,
        task.fairness_key,
        task.weight,
        task.ordering_key,
        task.unique_key,
        max(end.attempt, 1),
        task.submitted_at,
        scheduled.ready_at,
        scheduled.ready_at,
        end.triggered_at,
        end.triggered_at,
        end.started_at,
        end.finished_at,
        end.outcome,
        end.next_state,
        end.error_type,
        end.error_text,
        end.node,
        end.trigger_path,
        len(task.payload),
    )


def _key(task: NewTask) -> TaskKey:
    return TaskKey(task.run_at, task.ordering_key or "", task.unique_key or "")


def _scheduled(row: Row) -> ScheduledTask:
    run_at, ordering_key, unique_key, task, attempt, tries, retry_at = row
    return ScheduledTask(
        TaskKey(run_at, ordering_key, unique_key), _task.decode(task), attempt, tries, retry_at
    )
