"""The scheduler of a partition: hands out what is due, of each ordering key one task at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.clock import Clock
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import ScheduledTask
from fairlead.timed_event import TimedEvent


class Scheduler:
    """Hands out from `begin` on, except between `stop` and `go_on`."""

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
        """Look at the schedule again: it has changed."""
        self._changed.notify()

    def begin(self) -> None:
        """Hand out from now on: all that may come first is known."""
        self._is_begun = True
        self._changed.notify()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_stopped = True

    def go_on(self) -> None:
        """Hand out again."""
        self._is_stopped = False
        self._changed.notify()

    async def run(self) -> None:
        """Hand out until the tenure ends."""
        while True:
            is_waiting = self._is_stopped or not self._is_begun
            if not is_waiting and (due := self._schedule.due(self._clock.now())):
                self._hand_out(due)
            await self._changed.wait(None if is_waiting else self._schedule.next_due())
