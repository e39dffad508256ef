"""Reads of the schedule on Cassandra over whole partitions, and one task by its key or id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from fairlead.backends.cassandra.datacentres import Datacentres
from fairlead.backends.cassandra.schedule_writes import bucket_of
from fairlead.backends.cassandra.session import CassandraSession, chunks
from fairlead.backends.sql.rows import NIL, canonical
from fairlead.backends.sql.schedule_rows import Runs, decode_record, decode_task
from fairlead.model import PartitionKey, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import HOUR, ScheduleStatus, hour_of
from fairlead.ports.statements import Row

_AT_ONCE = 32
"""Concurrent statements of one call."""
LAST_HOUR = 1 << 62

T = TypeVar("T")
_runs = msgspec.json.Decoder(tuple[str, int, int, int | None])


class ScheduleScans:
    """Reads that need no owner; see `fairlead.ports.schedule_store.ScheduleStore`."""

    def __init__(self, session: CassandraSession) -> None:
        self.session = session
        self._datacentres = Datacentres(session)

    async def find(self, partition: PartitionKey, key: TaskKey) -> ScheduledTask | None:
        rows = [
            row
            async for row in self._datacentres.reading().rows(
                "find", *partition, hour_of(key), *key
            )
        ]
        return scheduled_of(partition, rows[-1]) if rows else None

    def find_now(self, task_id: str) -> ScheduledTask | None:
        """Find a task by one read of each partition, in a thread with a loop of its own, because
        the caller's thread may have a running loop."""
        if (task_id := canonical(task_id)) == NIL:
            return None
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, self._find_id(task_id)).result()

    async def _find_id(self, task_id: str) -> ScheduledTask | None:
        bucket = bucket_of(task_id)
        partitions = [PartitionKey(*row[:2]) async for row in self.session.rows("owners")]
        for some in chunks(partitions, _AT_ONCE):
            found = await asyncio.gather(
                *(self.session.execute("find_id", *each, bucket, task_id) for each in some)
            )
            for partition, keys in zip(some, found, strict=True):
                for key in keys:
                    scheduled = await self.find(partition, TaskKey(*key))
                    if scheduled is not None and scheduled.task.id == task_id:
                        return scheduled
        return None

    async def unfinished(self, queue: str, now: int) -> int:
        """Count the unfinished tasks of a queue that are due or have run, by a scan of due hours.

        A task that has run early, by a clock that was set back, counts when its hour is due.
        """
        records = await self._records(queue)
        left = await together(
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
                    PartitionKey(queue, partition), record.low_water_mark, LAST_HOUR
                )
            ]
            stale = sum(key.run_at < stale_before for key in keys)
            found[partition] = ScheduleStatus(
                range_id, record, len(keys), stale, min(keys, default=None)
            )
        return found

    async def _records(self, queue: str) -> dict[int, ScheduleRecord]:
        return {
            row[1]: decode_record(PartitionKey(queue, row[1]), row[2])
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
                    yield TaskKey(*key), has_run(task_id, runs)


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all calls; at most _AT_ONCE run concurrently."""
    return [result for some in chunks(calls, _AT_ONCE) for result in await asyncio.gather(*some)]


def scheduled_of(partition: PartitionKey, row: Row) -> ScheduledTask | None:
    """Return the task of a row, or None if it is completed, or if only the runs of a deleted task
    are left of it."""
    run_at, ordering_key, unique_key, task_id, task, runs, is_done = row
    if is_done or task_id is None:
        return None
    key = TaskKey(run_at, ordering_key, unique_key)
    return decode_task(partition, key, task_id, task, lambda: _runs_of(task_id, runs))


def _runs_of(task_id: str, runs: str | None) -> Runs:
    """Return the counts of a task's runs. Raise ValueError for a text that is none."""
    if runs is None:
        return 0, 0, None
    of, attempt, tries, retry_at = _runs.decode(runs)
    return (attempt, tries, retry_at) if of == task_id else (0, 0, None)


def has_run(task_id: str, runs: str | None) -> bool:
    """Return whether a task has run; also if its counts cannot be read."""
    try:
        return _runs_of(task_id, runs)[0] > 0
    except (ValueError, RecursionError):
        return True
