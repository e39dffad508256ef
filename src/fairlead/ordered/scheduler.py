"""The scheduler of a partition: hand out due tasks, one task of each ordering key at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.clock import Clock
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import ScheduledTask
from fairlead.pauses import TimedEvent


class Scheduler:
    """Hands out tasks after `begin`, except between `stop` and `resume`."""

    def __init__(
        self, schedule: Schedule, hand_out: Callable[[Sequence[ScheduledTask]], None], clock: Clock
    ) -> None:
        self._schedule = schedule
        self._hand_out = hand_out
        self._clock = clock
        self._changed = TimedEvent(clock)
        self._is_stopped = False
        self._is_begun = False

    def poke(self) -> None:
        """Read the schedule again, because it changed."""
        self._changed.notify()

    def begin(self) -> None:
        """Hand out tasks from now on: every task that may be the first of its key is known."""
        self._is_begun = True
        self._changed.notify()

    def stop(self) -> None:
        """Hand out no more tasks."""
        self._is_stopped = True

    def resume(self) -> None:
        """Hand out again."""
        self._is_stopped = False
        self._changed.notify()

    async def run(self) -> None:
        """Hand out tasks until cancelled."""
        while True:
            is_waiting = self._is_stopped or not self._is_begun
            if not is_waiting and (due := self._schedule.due(self._clock.now())):
                self._hand_out(due)
            await self._changed.wait(None if is_waiting else self._schedule.next_due())
