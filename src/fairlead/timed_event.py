"""An event that also occurs at a given time."""

from __future__ import annotations

import asyncio

from fairlead.clock import MICROS, Clock

LONGEST = 5.0
"""Longest sleep in seconds; the clock is read again after it, in case it was set meanwhile."""


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
