"""An event that also comes at a time."""

from __future__ import annotations

import asyncio

from fairlead.clock import MICROS, Clock

LONGEST = 5.0
"""Seconds until the clock is read again, which somebody may have set."""


class TimedEvent:
    """Wakes the one coroutine that waits: when another one notifies, or at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the coroutine that waits, or let its next wait return at once."""
        self._event.set()

    async def wait(self, at: int | None) -> None:
        """Wait until `notify` is called, was called since the last wait, or it is this time
        (microseconds)."""
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
