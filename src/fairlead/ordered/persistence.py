"""The persistence of a partition: the one coroutine that brings the log into the schedule and reads
from it.

One call at a time: what is read cannot miss what is written meanwhile, and the floor that is kept
lies below both. An entry of the log is committed when it is persisted, not before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from fairlead.clock import MICROS, Clock
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import NewTask, PartitionKey, ScheduledTask, ScheduleRecord
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import Batch, Drop, Entry, TaskLog
from fairlead.timed_event import TimedEvent

log = logging.getLogger("fairlead.ordered")

CATCH_UP_SECONDS = 10.0
"""How long a partition that was just loaded waits for what lies in the log already: some of it may
come first."""

DRIFT_SECONDS = 1.0
"""As far apart may the clocks of two machines be: what was submitted so long after the load was not
in the log by then."""

KEEP_SECONDS = 5.0
"""How often the record is kept while it changes: after a crash, so much is read again."""

MOST_DONE = 200
"""Pairs of keys told with the record between which nothing is unfinished."""

CLEAN_SECONDS = 60.0
KEEP_COMPLETIONS = 14 * 86_400.0
"""Seconds for which a completed key is known. What comes with an older key is refused as too late,
unless the log itself was not read for so long."""


class Persistence:
    """See the module."""

    def __init__(
        self,
        partition: PartitionKey,
        range_id: int,
        schedule: Schedule,
        task_log: TaskLog,
        store: ScheduleStore,
        end: Callable[[ScheduledTask, Drop], Awaitable[None]],
        describe: Callable[[], ScheduleRecord],
        changed: Callable[[], None],
        caught_up: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`end`: ends a task that a person has dropped. `describe`: the record, as it is now.
        `changed`: is told that there is something new to run. `caught_up`: that what was in the log
        at the start is in the schedule."""
        self._partition = partition
        self._range_id = range_id
        self._schedule = schedule
        self._log = task_log
        self._store = store
        self._end = end
        self._describe = describe
        self._changed = changed
        self._caught_up = caught_up
        self._is_caught_up = False
        self._clock = clock
        self._alarm = TimedEvent(clock)
        self._batch: Batch | None = None
        self._is_writing = False
        self._kept: ScheduleRecord | None = None
        self._keep_at = clock.monotonic()
        self._wait_until = clock.monotonic() + CATCH_UP_SECONDS
        self._news_from = clock.now() + round(DRIFT_SECONDS * MICROS)
        self._clean_at = clock.monotonic() + CLEAN_SECONDS

    @property
    def has_room(self) -> bool:
        """It takes a batch of the log."""
        return self._batch is None

    def accept(self, batch: Batch) -> None:
        """What comes next in the log."""
        self._batch = batch
        self._alarm.ring()

    def look(self) -> None:
        """There may be room in memory."""
        self._alarm.ring()

    async def run(self) -> None:
        """For as long as the partition lives."""
        while True:
            if self._batch is not None:
                await self._take_in(self._batch)
                self._batch = None
                self._log.look()
            is_reading = await self._read()
            if not self._is_caught_up and not is_reading:
                await self._look_at_log()
            if self._clock.monotonic() >= self._keep_at:
                await self.keep()
            if self._batch is None and not is_reading:
                await self._alarm.wait(self._schedule.next_read_at())

    async def _look_at_log(self) -> None:
        is_late = self._clock.monotonic() >= self._wait_until
        if is_late or not await self._log.is_behind(self._partition):
            self._begin()

    def _begin(self) -> None:
        self._is_caught_up = True
        self._caught_up()

    async def keep_last(self) -> None:
        """After `run` was cancelled: keep the record, unless a write was cut off. What that one may
        have brought is not in memory, and may lie below the floor that is known here."""
        if not self._is_writing:
            await self.keep()

    async def keep(self) -> None:
        """Keep the record, if it says something new; and clean, now and then."""
        record = self._describe()
        if (
            self._kept is None
            or msgspec.structs.replace(record, updated_at=self._kept.updated_at) != self._kept
        ):
            done = self._schedule.done(MOST_DONE)
            await self._store.keep(self._partition, self._range_id, record, done)
            self._kept = record
        self._keep_at = self._clock.monotonic() + KEEP_SECONDS
        if self._clock.monotonic() >= self._clean_at:
            before = self._clock.now() - round(KEEP_COMPLETIONS * MICROS)
            cleaned = await self._store.clean(self._partition, self._range_id, before)
            self._clean_at = self._clock.monotonic() + (0 if cleaned else CLEAN_SECONDS)

    async def _take_in(self, batch: Batch) -> None:
        for tasks, drop in _in_turns(batch.entries):
            if tasks:
                await self._persist(tasks)
            if drop is not None:
                await self._drop(drop)
        await self._log.commit(batch)
        # Where submits never cease the log is never empty; but they came after what it was found
        # with.
        if not self._is_caught_up and any(
            _told_at(entry) >= self._news_from for entry in batch.entries
        ):
            self._begin()

    async def _persist(self, tasks: Sequence[NewTask]) -> None:
        record = msgspec.structs.replace(self._describe(), floor=self._schedule.floor_with(tasks))
        self._is_writing = True
        completed = await self._store.persist(self._partition, self._range_id, tasks, record)
        self._kept = record
        self._schedule.written(tasks, completed)
        self._is_writing = False
        self._changed()

    async def _drop(self, drop: Drop) -> None:
        scheduled = self._schedule.get(drop.key) or await self._store.find(
            self._partition, drop.key
        )
        if scheduled is None:
            log.info(
                "nothing to drop: it has ended, or was never there", extra={"key": tuple(drop.key)}
            )
        else:
            await self._end(scheduled, drop)
            self._changed()

    async def _read(self) -> bool:
        """Read what the schedule asks for; False when it asks for nothing."""
        read = self._schedule.next_read(self._clock.now())
        if read is None:
            return False
        rows = await self._store.read(
            self._partition, read.after, read.through, read.limit, read.ordering_key
        )
        self._schedule.read_done(rows)
        self._changed()
        return True


def _told_at(entry: Entry) -> int:
    """Microseconds, by the clock of who submitted it."""
    return entry.at if isinstance(entry, Drop) else entry.task.submitted_at


def _in_turns(entries: Iterable[Entry]) -> Iterable[tuple[Sequence[NewTask], Drop | None]]:
    """Tasks to persist at once, none with the key of another, and what to drop after them."""
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
