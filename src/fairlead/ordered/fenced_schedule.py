"""The schedule store for one owner of one partition: every write carries its range id."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core.schedule.schedule import ScheduleRead
from fairlead.model import (
    NewTask,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    TaskKey,
)
from fairlead.ports.schedule_store import Page, ScheduleStore


class FencedSchedule:
    """Calls of `fairlead.ports.schedule_store.ScheduleStore` for one partition and range id. Each
    raises the errors of the store."""

    def __init__(self, store: ScheduleStore, partition: PartitionKey, range_id: int) -> None:
        self.partition = partition
        self._store = store
        self.range_id = range_id

    async def persist(self, tasks: Sequence[NewTask], record: ScheduleRecord) -> set[TaskKey]:
        """Add the tasks and save the record; return the keys that were completed before."""
        return await self._store.persist(self.partition, self.range_id, tasks, record)

    async def read(self, read: ScheduleRead) -> Page:
        """Return the unfinished tasks of a page that a schedule needs."""
        return await self._store.read(
            self.partition,
            read.after,
            read.through,
            read.limit,
            read.ordering_key,
            read.most_bytes,
        )

    async def find(self, key: TaskKey) -> ScheduledTask | None:
        """Return the unfinished task with this key, if there is one."""
        return await self._store.find(self.partition, key)

    async def finish(self, ends: Sequence[RunEnd]) -> None:
        """Write the runs for the history, and complete or update their tasks."""
        await self._store.finish(self.partition, self.range_id, ends)

    async def move_attempts(self) -> None:
        """Move runs to the history that only the store has."""
        await self._store.move_attempts(self.partition, self.range_id)

    async def keep(
        self, record: ScheduleRecord, done: Sequence[tuple[TaskKey, TaskKey]] = ()
    ) -> None:
        """Save the record; delete completed tasks between the pairs of keys."""
        await self._store.keep(self.partition, self.range_id, record, done)

    async def clean(self, before: int) -> int:
        """Drop a batch of tasks completed before this instant (microseconds); return its size."""
        return await self._store.clean(self.partition, self.range_id, before)
