"""Tasks of one partition whose stored rows cannot be read: report them, and look for repairs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from fairlead.clock import Clock
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import (
    IncidentKind,
    IncidentReport,
    PartitionKey,
    ScheduledTask,
    TaskKey,
)
from fairlead.ports.observer import Observer
from fairlead.ports.schedule_store import hour_of

log = logging.getLogger("fairlead.ordered")

CHECK_SECONDS = 30.0
"""Seconds between two reads of the rows."""

MOST_AT_ONCE = 100
"""Rows that are reported one by one, and rows of one check; further rows are checked later."""

_CURE = (
    "the later tasks of this ordering key wait, all others continue. Correct the row, or end the"
    " task by `fairlead ordered drop {queue} ORDERING_KEY --run-at {run_at} --unique-key"
    " UNIQUE_KEY`. The owner reads the row again every 30 s"
)


class UnreadableTasks:
    """The tasks in a partition's schedule that cannot be read. Each blocks its ordering key."""

    def __init__(
        self,
        partition: PartitionKey,
        schedule: Schedule,
        on_incidents: Callable[[Sequence[IncidentReport]], None],
        observer: Observer,
        clock: Clock,
    ) -> None:
        """`on_incidents`: callback that records incidents."""
        self._partition = partition
        self._schedule = schedule
        self._on_incidents = on_incidents
        self._observer = observer
        self._clock = clock
        self._tasks: dict[TaskKey, str] = {}
        """Errors by key, those checked longest ago first."""
        self._check_at = clock.monotonic() + CHECK_SECONDS

    def __len__(self) -> int:
        """Return the number of these tasks in memory."""
        return sum(self._is_in_memory(key) for key in self._tasks)

    def note(self, rows: Sequence[ScheduledTask]) -> None:
        """Note those of the rows that cannot be read and are in memory."""
        new = {
            row.key: row.unreadable
            for row in rows
            if row.unreadable is not None
            and row.key not in self._tasks
            and self._is_in_memory(row.key)
        }
        if new:
            self._observer.counted("unreadable_rows", len(new))
            self._tasks |= new
            self._report([*new])

    async def check(self, find: Callable[[TaskKey], Awaitable[ScheduledTask | None]]) -> bool:
        """Read some of the rows again if it is time. Return whether one was repaired or deleted."""
        if not self._tasks or self._clock.monotonic() < self._check_at:
            return False
        self._check_at = self._clock.monotonic() + CHECK_SECONDS
        still, is_changed = list[TaskKey](), False
        for key in list(islice(self._tasks, MOST_AT_ONCE)):
            error = self._tasks.pop(key)
            if not self._is_in_memory(key):
                continue
            row = await find(key)
            if row is not None and row.unreadable is not None:
                self._tasks[key] = error
                still.append(key)
            elif row is not None:
                self._schedule.repaired(row)
                is_changed = True
            else:
                self._schedule.ended(key, None)
                is_changed = True
        self._report(still)
        return is_changed

    def _is_in_memory(self, key: TaskKey) -> bool:
        task = self._schedule.get(key)
        return task is not None and task.unreadable is not None

    def _report(self, keys: Sequence[TaskKey]) -> None:
        queue, number = self._partition
        more = f"; and {n} more in this partition" if (n := len(self._tasks) - len(keys)) else ""
        reports = []
        for key in keys[:MOST_AT_ONCE]:
            place = f"{queue}/{number}/{hour_of(key)}/{key.run_at}/{key.ordering_key}"
            error = self._tasks[key]
            log.error(
                "a stored task cannot be read, and blocks its ordering key",
                extra={"partition": self._partition, "key": tuple(key), "error": error},
            )
            cure = _CURE.format(queue=queue, run_at=key.run_at)
            reports.append(
                IncidentReport(
                    kind=IncidentKind.TASK_UNREADABLE,
                    subject=f"{place}/{key.unique_key}",
                    details=f"cannot read the row ({error}); {cure}{more}",
                    since=self._clock.now(),
                    queue=queue,
                )
            )
        if reports:
            self._on_incidents(reports)
