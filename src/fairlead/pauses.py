"""Pauses of coroutines: until an event or a time, and before another try of a store."""

from __future__ import annotations

import asyncio
import math
import random
from contextlib import suppress

from fairlead.clock import MICROS, Clock

LONGEST = 5.0
"""Longest sleep in seconds; the clock is read again after it, in case it was set meanwhile."""

SHORTEST = 0.001
"""Shortest wait for an event, in seconds: a timer may end a nanosecond early, and a shorter wait
may vanish in the clock's floats, which have 53 bits."""

OUTAGE_PAUSES = (0.1, 1.0)
"""Shortest and longest pause in seconds before an unavailable store is tried again."""


async def event_or_pause(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set, for at most this time, which may be infinite. Return whether the
    event is set."""
    if not event.is_set():
        limit = None if seconds == math.inf else max(SHORTEST, seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await event.wait()
    return event.is_set()


def outage_pause() -> float:
    """Return the seconds until the next try.

    The pause is random, so that not all nodes try at once, and no fault that repeats at an interval
    meets every try.
    """
    return random.uniform(*OUTAGE_PAUSES)


class TimedEvent:
    """Wakes its one waiting coroutine, at a time or when another coroutine notifies."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the coroutine that waits, or let its next wait return at once."""
        self._event.set()

    async def wait(self, at: int | None) -> None:
        """Wait until this time (microseconds since the epoch) or until `notify` is called; return
        at once if it was called since the last wait."""
        left = LONGEST if at is None else (at - self._clock.now()) / MICROS
        if left > 0 and not self._event.is_set():
            sleeping = asyncio.ensure_future(self._clock.sleep(min(left, LONGEST)))
            notified = asyncio.ensure_future(self._event.wait())
            try:
                await asyncio.wait([sleeping, notified], return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                notified.cancel()
        self._event.clear()
