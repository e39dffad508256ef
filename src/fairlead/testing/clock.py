"""The clock of tests: the time of the machine, moved by travels."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from fairlead.clock import MICROS, SYSTEM_CLOCK, to_datetime, to_micros


class TravelClock:
    """A `fairlead.clock.Clock` that runs as fast as the system clock and jumps forward by
    `travel`."""

    def __init__(self) -> None:
        self._ahead = 0
        """Microseconds between the system clock and this one."""

    def now(self) -> int:
        """Return the time in microseconds since 1970 UTC, with all travels."""
        return SYSTEM_CLOCK.now() + self._ahead

    def monotonic(self) -> float:
        """Return the seconds on a clock that never steps back, with all travels."""
        return SYSTEM_CLOCK.monotonic() + self._ahead / MICROS

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` of the system clock have passed."""
        await asyncio.sleep(seconds)

    def travel(self, to: timedelta | datetime) -> None:
        """Jump forward: by a timedelta, or to an aware datetime. Raises ValueError for a way back
        and for a naive datetime, TypeError for anything else."""
        now = self.now()
        if isinstance(to, datetime):
            step = to_micros(to) - now
        elif isinstance(to, timedelta):
            step = to // timedelta(microseconds=1)
        else:
            raise TypeError(f"travel to {to!r}: give a timedelta or an aware datetime")
        if step < 0:
            raise ValueError(
                f"travel to {to}: the clock shows {to_datetime(now).isoformat()} and never goes"
                " back; begin another test"
            )
        to_datetime(now + step)  # OverflowError beyond the year 9999
        self._ahead += step
