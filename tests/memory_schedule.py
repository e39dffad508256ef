"""The schedule store in memory, for simulations; it passes the contract tests of the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.core.sharding.partitions import partition_of
from fairlead.model import NewTask, PartitionKey, RunEnd, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import ANY_BYTES, Fenced, Moved, Owned, Page, ScheduleStatus

CLEANED_AT_ONCE = 1000
"""Completed keys that one `clean` deletes at most."""


MOVED_AT_ONCE = 20
"""Keys that one `move_tasks` moves at most."""


@dataclass
class Rows:
    """Rows of one partition."""

    range_id: int = 0
    record: ScheduleRecord = field(default_factory=ScheduleRecord)
    tasks: dict[TaskKey, ScheduledTask] = field(default_factory=dict)
    completed: dict[TaskKey, int] = field(default_factory=dict)
    """Instants of completion, in microseconds since the epoch, by key."""


class MemoryScheduleStore:
    """A `fairlead.ports.schedule_store.ScheduleStore` in memory."""

    location = "memory"

    def __init__(self) -> None:
        self.partitions: dict[PartitionKey, Rows] = {}
        self.history: dict[tuple[str, int, int], RunEnd] = {}
        """Ends of runs by task id, attempt and time of the end; a repeated end counts once."""

    async def migrate(self) -> None:
        """Do nothing: there are no tables."""

    async def prepare(self) -> None:
        """Do nothing: there are no tables."""

    async def take_over(self, partition: PartitionKey) -> Owned:
        rows = self.partitions.setdefault(partition, Rows())
        rows.range_id += 1
        return Owned(rows.range_id, rows.record)

    async def persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> set[TaskKey]:
        rows = self._fenced(partition, range_id)
        rows.record = record
        completed = set()
        for task in tasks:
            new = ScheduledTask.of(task)
            known = rows.tasks.get(new.key)
            if new.key in rows.completed:
                completed.add(new.key)
            elif known is None or known.task.id != task.id:
                rows.tasks[new.key] = new
        return completed

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
        most_bytes: int = ANY_BYTES,
    ) -> Page:
        rows = self.partitions.get(partition, Rows()).tasks
        keys = sorted(
            key
            for key in rows
            if after < key <= through and ordering_key in (None, key.ordering_key)
        )
        tasks = [rows[key] for key in keys[:limit]]
        size = 0
        for n, scheduled in enumerate(tasks):
            size += len(scheduled.task.payload)
            if n and size > most_bytes:
                return Page(tasks[:n], True)
        return Page(tasks, False)

    async def find(self, partition: PartitionKey, key: TaskKey) -> ScheduledTask | None:
        return self.partitions.get(partition, Rows()).tasks.get(key)

    def find_now(self, task_id: str) -> ScheduledTask | None:
        found = (each for rows in self.partitions.values() for each in rows.tasks.values())
        return next((each for each in found if each.task.id == task_id), None)

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        rows = self._fenced(partition, range_id)
        for end in ends:
            self.history.setdefault((end.scheduled.task.id, end.attempt, end.finished_at), end)
            key = end.scheduled.key
            if end.completes:
                rows.completed.setdefault(key, end.finished_at)
                rows.tasks.pop(key, None)
            elif key in rows.tasks and rows.tasks[key].task.id == end.scheduled.task.id:
                rows.tasks[key] = end.again

    async def move_attempts(self, partition: PartitionKey, range_id: int) -> None:
        """Do nothing: `finish` writes the history."""

    async def keep(
        self,
        partition: PartitionKey,
        range_id: int,
        record: ScheduleRecord,
        done: Sequence[tuple[TaskKey, TaskKey]] = (),
    ) -> None:
        rows = self._fenced(partition, range_id)
        rows.record = record
        for above, below in done:
            if left := [key for key in rows.tasks if above < key < below]:
                raise AssertionError(
                    f"between {above} and {below} these are unfinished: {left[:3]}"
                )

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        rows = self._fenced(partition, range_id)
        old = sorted(
            key for key, at in rows.completed.items() if at < before and key.run_at < before
        )
        for key in old[:CLEANED_AT_ONCE]:
            del rows.completed[key]
        return len(old[:CLEANED_AT_ONCE])

    async def move_tasks(
        self, source: PartitionKey, range_ids: Mapping[int, int], partitions: int, after: Any
    ) -> Moved:
        rows = self._fenced(source, range_ids[source.partition])
        tasks = completed = 0
        keys = sorted(
            key
            for key in rows.tasks.keys() | rows.completed.keys()
            if (after is None or key > after)
            and partition_of(key.ordering_key, 0, partitions) != source.partition
        )
        for key in keys[:MOVED_AT_ONCE]:
            number = partition_of(key.ordering_key, 0, partitions)
            target = self._fenced(PartitionKey(source.queue, number), range_ids[number])
            if (task := rows.tasks.pop(key, None)) is not None:
                target.tasks[key] = moved_to(task, number)
                tasks += 1
            if (at := rows.completed.pop(key, None)) is not None:
                target.completed.setdefault(key, at)
                completed += 1
        return Moved(tasks, completed, keys[:MOVED_AT_ONCE][-1] if keys else None)

    async def now(self) -> int | None:
        return None

    async def unfinished(self, queue: str, now: int) -> int:
        return sum(
            key.run_at <= now or task.attempt > 0
            for partition, rows in self.partitions.items()
            if partition.queue == queue
            for key, task in rows.tasks.items()
        )

    async def has_due(self, queue: str, now: int) -> bool:
        return any(
            key.run_at <= now
            for partition, rows in self.partitions.items()
            if partition.queue == queue
            for key in rows.tasks
        )

    async def statuses(self, queue: str, stale_before: int) -> dict[int, ScheduleStatus]:
        return {
            partition.partition: ScheduleStatus(
                rows.range_id,
                rows.record,
                len(rows.tasks),
                sum(key.run_at < stale_before for key in rows.tasks),
                min(rows.tasks, default=None),
            )
            for partition, rows in self.partitions.items()
            if partition.queue == queue
        }

    async def close(self) -> None:
        """Do nothing: there is no resource to close."""

    def _fenced(self, partition: PartitionKey, range_id: int) -> Rows:
        rows = self.partitions.get(partition)
        if rows is None or rows.range_id != range_id:
            raise Fenced(f"partition {partition} was taken over: range id {range_id} is void")
        return rows


def moved_to(scheduled: ScheduledTask, partition: int) -> ScheduledTask:
    """Return the task in another partition."""
    task = msgspec.structs.replace(scheduled.task, partition=partition)
    return msgspec.structs.replace(scheduled, task=task)
