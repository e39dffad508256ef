"""One life of a partition, from a take-over until something fails or the partition goes: its parts
in one task group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fairlead.core.schedule.schedule import Schedule
from fairlead.core.schedule.throughput import Window
from fairlead.model import PartitionKey, RunEnd, ScheduledTask, ScheduleRecord
from fairlead.ordered.completion import Completion
from fairlead.ordered.context import Surroundings
from fairlead.ordered.ending import dropped
from fairlead.ordered.persistence import Persistence
from fairlead.ordered.scheduler import Scheduler
from fairlead.ports.schedule_store import Owned
from fairlead.ports.task_log import Drop


class Life:
    """See the module. What runs, and what has ended unwritten, outlives it: `running` is what there
    is of both."""

    def __init__(
        self,
        partition: PartitionKey,
        owned: Owned,
        window: Window,
        running: Sequence[ScheduledTask],
        completion: Completion,
        hand_out: Callable[[Sequence[ScheduledTask]], None],
        stop: Callable[[ScheduledTask], bool],
        describe: Callable[[ScheduleRecord], ScheduleRecord],
        around: Surroundings,
    ) -> None:
        """`stop`: ends a task that was handed out; True when it had not begun. `describe` completes
        a record."""
        self._partition = partition
        self._range_id = owned.range_id
        self._completion = completion
        self._stop = stop
        self._describe = describe
        self._around = around
        self.schedule = Schedule(owned.record.floor, window, running)
        self.scheduler = Scheduler(self.schedule, hand_out, around.clock)
        self.persistence = Persistence(
            partition,
            owned.range_id,
            self.schedule,
            around.log,
            around.store,
            self._drop,
            self._record,
            self.scheduler.look,
            self.scheduler.begin,
            around.clock,
        )

    async def run(self) -> None:
        """Until it fails, or is cancelled."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self.persistence.run())
            parts.create_task(self.scheduler.run())
            parts.create_task(self._completion.run(self._finish))

    async def last_words(self) -> None:
        """After `run` was cancelled and nothing runs any more: keep what spares the next owner
        work."""
        await self.persistence.keep_last()

    def over(self, ends: Sequence[RunEnd]) -> None:
        """These ends are in the store."""
        for end in ends:
            self.schedule.ended(end.scheduled.key, None if end.completes else end.again)
        self.look()

    def returned(self, scheduled: ScheduledTask) -> None:
        """It was handed out and has not run."""
        self.schedule.returned(scheduled.key)
        self.look()

    def look(self) -> None:
        """The schedule has changed."""
        self.scheduler.look()
        self.persistence.look()

    async def _finish(self, ends: Sequence[RunEnd]) -> None:
        await self._around.store.finish(self._partition, self._range_id, ends)

    async def _drop(self, scheduled: ScheduledTask, drop: Drop) -> None:
        """Its end is written first: whatever its run does then is no longer of interest."""
        is_running = self.schedule.is_running(scheduled.key)
        await self._finish([dropped(scheduled, is_running, drop.actor, drop.at, self._around.node)])
        if not self.schedule.is_running(scheduled.key) or self._stop(scheduled):
            self.schedule.ended(scheduled.key, None)

    def _record(self) -> ScheduleRecord:
        schedule = self.schedule
        return self._describe(
            ScheduleRecord(
                floor=schedule.floor, read_through=schedule.read_through, loaded=len(schedule)
            )
        )
