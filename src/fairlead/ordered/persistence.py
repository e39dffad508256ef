"""The persistence of a partition: the only coroutine that copies the entries of the log to the
stored schedule, and reads tasks from there into memory.

Only one write or one set of reads runs at a time, so that a read cannot miss a concurrent write,
and the saved low-water mark lies below all tasks read or written. An entry of the log is committed
after the entry is persisted. While the store refuses an entry, the other entries of its batch are
persisted, except later ones of its ordering key, and the next batch stays in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from fairlead.batch_writer import BatchWriter, Refusal
from fairlead.clock import MICROS, Clock
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import IncidentReport, NewTask, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ordered.fenced_schedule import FencedSchedule
from fairlead.ordered.record import Record
from fairlead.ordered.unreadable import UnreadableTasks
from fairlead.pauses import TimedEvent
from fairlead.ports.schedule_store import Fenced
from fairlead.ports.task_log import Batch, Drop, Entry, TaskLog
from fairlead.refused_writes import RefusedWrites

log = logging.getLogger("fairlead.ordered")

MOST_AT_ONCE = 5000
"""Maximum number of tasks in one write."""

CATCH_UP_SECONDS = 10.0
"""Longest time, in seconds, for which a loaded partition starts no task because it still reads the
entries that were in the log at the start: any of them may be the first task of its ordering key."""

READS_AT_ONCE = 16
"""Reads of single ordering keys under way at once."""

DRIFT_SECONDS = 1.0
"""Assumed greatest difference of two clocks, in seconds: an entry submitted this long after the
load was not in the log then."""


class PersistenceEvents(Protocol):
    """Events from the persistence to its tenure."""

    def record(self) -> ScheduleRecord:
        """Return the current record of the partition."""

    def on_changed(self) -> None:
        """The schedule has new tasks to run."""

    def on_caught_up(self) -> None:
        """The schedule has all entries that were in the log at the start."""

    def on_incidents(self, reports: Sequence[IncidentReport]) -> None:
        """The store refuses entries of the log and accepts others."""

    async def on_drop(self, scheduled: ScheduledTask, drop: Drop) -> None:
        """A person ended this task."""


class Persistence:
    """Persist one batch of the log at a time, and read the pages that the schedule needs."""

    def __init__(
        self,
        store: FencedSchedule,
        schedule: Schedule,
        unreadable: UnreadableTasks,
        task_log: TaskLog,
        events: PersistenceEvents,
        clock: Clock,
    ) -> None:
        self._store = store
        self._schedule = schedule
        self._unreadable = unreadable
        self._log = task_log
        self._events = events
        self._record = Record(store, schedule, events.record, clock)
        self._catch_up = _CatchUp(clock)
        self._wanted = TimedEvent(clock)
        self._clock = clock
        self._batch: Batch | None = None
        self._pieces = deque[tuple[Sequence[NewTask], Drop | None]]()
        """Entries of the batch that were not given to the writers."""
        waits = "tasks of its ordering key and entries of the log of its partition"
        self._refused = RefusedWrites("task of the log", log, clock, events.on_incidents, waits)
        self._tasks = BatchWriter[NewTask, set[TaskKey]](
            MOST_AT_ONCE, clock, self._on_persisted, self._on_task_refused, (Fenced,)
        )
        self._drops = BatchWriter[Drop, None](
            1, clock, lambda drops, _: None, self._on_drop_refused, (Fenced,)
        )
        self._refused_commits = RefusedWrites(
            "deletion of stored entries of the log",
            log,
            clock,
            events.on_incidents,
            "entries of the log of its partition",
        )
        self._commits = BatchWriter[Batch, None](
            1, clock, self._on_committed, self._on_commit_refused, (Fenced,)
        )
        """The batch, when all its entries are stored."""
        self._behind: dict[str, list[NewTask]] = {}
        """Tasks that wait for a refused one, by their ordering key."""
        self._is_writing = False

    @property
    def has_room(self) -> bool:
        """Whether the next batch of the log is accepted now."""
        return self._batch is None

    def accept(self, batch: Batch) -> None:
        """Accept the next batch of the log."""
        self._batch = batch
        self._pieces.extend(in_order(batch.entries))
        self._wanted.notify()

    def poke(self) -> None:
        """Check again whether there is room in memory."""
        self._wanted.notify()

    async def run(self) -> None:
        """Persist and read until cancelled."""
        if self._events.record().trouble is not None:
            # The next step may fail again: let people see why.
            await self._record.save()
        while True:
            if self._batch is not None:
                await self._take_in(self._batch)
            is_reading = await self._read()
            if not self._catch_up.is_over and not is_reading:
                await self._check_log()
            if await self._unreadable.check(self._store.find):
                self._events.on_changed()
            if self._record.is_due:
                await self._record.save()
            if (self._batch is None or self._is_refused) and not is_reading:
                await self._wanted.wait(self._wake_at())

    def _wake_at(self) -> int | None:
        """Return when to read or to try a refused entry again (microseconds since the epoch)."""
        times = [self._schedule.next_read_at()]
        for writer in (self._tasks, self._drops, self._commits):
            left = writer.next_retry()
            if left is not None:
                times.append(self._clock.now() + left)
        return min((at for at in times if at is not None), default=None)

    async def _check_log(self) -> None:
        if self._catch_up.is_late or not await self._log.is_behind(self._store.partition):
            self._begin()

    def _begin(self) -> None:
        self._catch_up.is_over = True
        self._events.on_caught_up()

    async def save(self) -> None:
        """Save the record after `run` was cancelled, unless a write was cut short: entries of that
        write may be unknown in memory and lie below the known low-water mark."""
        if not self._is_writing:
            await self._record.save()

    @property
    def _is_refused(self) -> bool:
        """Whether the store refuses an entry of the batch, or the log its commit."""
        return bool(self._tasks.refused or self._drops.refused or self._commits.refused)

    async def _take_in(self, batch: Batch) -> None:
        """Persist the batch and commit it, unless the store refuses an entry, or the log its
        commit."""
        await self._commits.retry(self._commit)
        await self._tasks.retry(self._persist)
        await self._drops.retry(self._drop)
        while self._batch is not None:
            await self._tasks.flush(self._persist)
            if not self._tasks.refused:
                await self._drops.flush(self._drop)
            if self._is_refused:
                return
            if self._pieces:
                tasks, drop = self._pieces.popleft()
                self._tasks.waiting.extend(tasks)
                self._drops.waiting.extend([] if drop is None else [drop])
            else:
                self._commits.add(batch)
                await self._commits.flush(self._commit)

    async def _commit(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            await self._log.commit(batch)

    def _on_committed(self, batches: Sequence[Batch], _: None) -> None:
        self._batch = None
        self._log.poke()
        # A log with constant submits never becomes empty. An entry submitted after the start shows
        # that all entries from before the start have been read.
        is_later = any(self._catch_up.has_later_entry(batch.entries) for batch in batches)
        if is_later and not self._catch_up.is_over:
            self._begin()

    async def _persist(self, tasks: Sequence[NewTask]) -> set[TaskKey]:
        low_water_mark = self._schedule.low_water_mark_with(tasks)
        record = msgspec.structs.replace(self._events.record(), low_water_mark=low_water_mark)
        self._is_writing = True
        completed = await self._store.persist(tasks, record)
        self._record.on_saved(record)
        return completed

    def _on_persisted(self, tasks: Sequence[NewTask], completed: set[TaskKey]) -> None:
        self._schedule.written(tasks, completed)
        self._is_writing = False
        for task in tasks:
            for behind in self._behind.pop(task.ordering_key or "", ()):
                self._tasks.add(behind)
        self._events.on_changed()

    def _on_task_refused(self, refusal: Refusal[NewTask]) -> None:
        task, waiting = refusal.entry, self._tasks.waiting
        behind = [each for each in waiting if each.ordering_key == task.ordering_key]
        if behind:  # or they would run before the refused one
            self._behind.setdefault(task.ordering_key or "", []).extend(behind)
            waiting[:] = [each for each in waiting if each.ordering_key != task.ordering_key]
        self._refused.on_refused(refusal.error, self._refused_ids(), task.id, task.queue, task.name)

    def _on_drop_refused(self, refusal: Refusal[Drop]) -> None:
        queue, id = self._store.partition.queue, _id_of(refusal.entry)
        self._refused.on_refused(refusal.error, self._refused_ids(), id, queue, "")

    def _refused_ids(self) -> list[str]:
        drops = [_id_of(each.entry) for each in self._drops.refused]
        return [*drops, *(each.entry.id for each in self._tasks.refused)]

    def _on_commit_refused(self, refusal: Refusal[Batch]) -> None:
        queue, number = self._store.partition
        subject = f"log of {queue}/{number}"
        self._refused_commits.on_refused(refusal.error, [subject], subject, queue, "")

    async def _drop(self, drops: Sequence[Drop]) -> None:
        (drop,) = drops
        scheduled = self._schedule.get(drop.key)
        if scheduled is None or scheduled.dropped:
            scheduled = await self._store.find(drop.key)
        if scheduled is None:
            log.info(
                "nothing to drop: the task has ended or never existed",
                extra={"key": tuple(drop.key)},
            )
        else:
            await self._events.on_drop(scheduled, drop)
            self._events.on_changed()

    async def _read(self) -> bool:
        """Read the page that the schedule needs, or tasks of some ordering keys; return False when
        it needs none."""
        read = self._schedule.next_read(self._clock.now())
        if read is None:
            return False
        beside = self._schedule.reads_beside(READS_AT_ONCE - 1)
        found = await asyncio.gather(*(self._store.read(one) for one in (read, *beside)))
        for one, page in zip(beside, found[1:], strict=True):
            self._schedule.read_beside_done(one, *page)
        self._schedule.read_done(*found[0])
        for tasks, _ in found:
            self._unreadable.note(tasks)
        self._events.on_changed()
        return True


class _CatchUp:
    """Detector of the moment when the entries found in the log at the start have been read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_over = False
        self._wait_until = clock.monotonic() + CATCH_UP_SECONDS
        self._later_from = clock.now() + round(DRIFT_SECONDS * MICROS)

    @property
    def is_late(self) -> bool:
        """Whether the partition has waited long enough."""
        return self._clock.monotonic() >= self._wait_until

    def has_later_entry(self, entries: Iterable[Entry]) -> bool:
        """Whether one of the entries was submitted after the start."""
        return any(_submitted_at(entry) >= self._later_from for entry in entries)


def _id_of(drop: Drop) -> str:
    """Return what stands for a task in an incident about its drop."""
    return "/".join(map(str, drop.key))


def _submitted_at(entry: Entry) -> int:
    """Return when an entry was submitted: microseconds, by the submitter's clock."""
    return entry.at if isinstance(entry, Drop) else entry.task.submitted_at


def in_order(entries: Iterable[Entry]) -> Iterable[tuple[Sequence[NewTask], Drop | None]]:
    """Split the entries into batches of tasks with different keys, and yield each batch with the
    key to drop after it, if there is one."""
    tasks: dict[object, NewTask] = {}
    for entry in entries:
        if isinstance(entry, Drop):
            yield list(tasks.values()), entry
            tasks = {}
        else:
            key = ScheduledTask.of(entry.task).key
            tasks.pop(key, None)
            tasks[key] = entry.task
    yield list(tasks.values()), None
