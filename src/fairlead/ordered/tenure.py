"""One tenure of a partition: from a take-over until a failure or the release."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from fairlead.core.schedule.schedule import Schedule
from fairlead.core.schedule.throughput import Window
from fairlead.model import IncidentReport, ScheduledTask, ScheduleRecord
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.ending import dropped
from fairlead.ordered.fenced_schedule import FencedSchedule
from fairlead.ordered.in_flight import InFlight
from fairlead.ordered.persistence import Persistence
from fairlead.ordered.scheduler import Scheduler
from fairlead.ordered.unreadable import UnreadableTasks
from fairlead.ports.task_log import Drop

MOVE_SECONDS = 60.0
"""Seconds between two moves of runs from the store to the history."""

LAST_MOVE_SECONDS = 10.0
"""Longest time, in seconds, for which the release of a partition waits for the last move."""


class Tenure:
    """The parts of a partition in one task group. Runs and unwritten ends outlive a tenure: they
    are in `InFlight`."""

    def __init__(
        self,
        store: FencedSchedule,
        schedule: Schedule,
        in_flight: InFlight,
        describe: Callable[[ScheduleRecord], ScheduleRecord],
        context: OrderedContext,
    ) -> None:
        """`describe`: callback that adds to a record the fields that the tenure does not know."""
        self._store = store
        self.fence = store.range_id
        self._in_flight = in_flight
        self._describe = describe
        self._node = context.node
        self._on_incidents = context.on_incidents
        self._clock = context.clock
        self.schedule = schedule
        self.scheduler = Scheduler(schedule, in_flight.hand_out, context.clock)
        self._unreadable = UnreadableTasks(
            store.partition, schedule, context.on_incidents, context.observer, context.clock
        )
        self.persistence = Persistence(
            store, schedule, self._unreadable, context.log, self, context.clock
        )

    async def run(self) -> None:
        """Run the parts until one fails or the tenure is cancelled."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self.persistence.run())
            parts.create_task(self.scheduler.run())
            parts.create_task(self._in_flight.ends.run(self._store.finish))
            parts.create_task(self._in_flight.ends.run_retries(self._store.finish))
            parts.create_task(self._move_attempts())

    async def _move_attempts(self) -> None:
        while True:
            await self._clock.sleep(MOVE_SECONDS)
            await self._store.move_attempts()

    async def save(self) -> None:
        """Save the record for the next owner, after `run` was cancelled and no task runs. Then move
        runs to the history, as many as the time allows; the next owner moves the rest."""
        await self.persistence.save()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_MOVE_SECONDS):
                await self._store.move_attempts()

    def resize(self, window: Window) -> None:
        """Set how many tasks may be in memory."""
        self.schedule.resize(window)
        self.poke()

    def poke(self) -> None:
        """Read the schedule again, because it changed."""
        self.scheduler.poke()
        self.persistence.poke()

    # callbacks of the persistence ---------------------------------------------------------------

    def record(self) -> ScheduleRecord:
        schedule = self.schedule
        return self._describe(
            ScheduleRecord(
                low_water_mark=schedule.low_water_mark,
                read_through=schedule.read_through,
                loaded=len(schedule),
                unreadable=len(self._unreadable),
            )
        )

    def on_changed(self) -> None:
        self.scheduler.poke()

    def on_caught_up(self) -> None:
        self.scheduler.begin()

    def on_incidents(self, reports: Sequence[IncidentReport]) -> None:
        self._on_incidents(reports)

    async def on_drop(self, scheduled: ScheduledTask, drop: Drop) -> None:
        # Write the end first; the result of the run is then dropped.
        is_running = self.schedule.is_running(scheduled.key)
        end = dropped(scheduled, is_running, drop.actor, drop.at, self._node)
        await self._store.finish([end])
        if not self.schedule.is_running(scheduled.key) or self._in_flight.stop(scheduled):
            self.schedule.ended(scheduled.key, None)
