"""An event that also comes at a time."""

from __future__ import annotations

import asyncio

from fairlead.clock import MICROS, Clock

LONGEST = 5.0
"""Seconds until it looks at the clock again, which somebody may have set."""


class TimedEvent:
    """For one coroutine that waits and any others that ring."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Now."""
        self._event.set()

    async def wait(self, at: int | None) -> None:
        """Until somebody rings, has rung since the last wait, or it is this time (microseconds)."""
        left = LONGEST if at is None else (at - self._clock.now()) / MICROS
        if left > 0 and not self._event.is_set():
            sleeping = asyncio.ensure_future(self._clock.sleep(min(left, LONGEST)))
            ringing = asyncio.ensure_future(self._event.wait())
            try:
                await asyncio.wait([sleeping, ringing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                ringing.cancel()
        self._event.clear()
