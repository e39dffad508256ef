"""A clock that jumps to the next event as soon as nothing else can proceed."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from fairlead.clock import MICROS

START = 1_700_000_000 * MICROS


class VirtualClock:
    """The `fairlead.clock.Clock` of a simulation whose only waits are on this clock."""

    def __init__(self) -> None:
        self._now = START
        self.step = 0
        """Microseconds by which somebody set the time of day ahead."""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now(self) -> int:
        return self._now + self.step

    def monotonic(self) -> float:
        return (self._now - START) / MICROS

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(
            self._waiting, (self._now + round(seconds * MICROS), next(self._numbers), future)
        )
        await future

    async def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until the condition holds; return False if it does not in time."""
        end = self._now + round(seconds * MICROS)
        while True:
            await self._settle()
            if until():
                return True
            while self._waiting and self._waiting[0][2].done():
                heapq.heappop(self._waiting)
            if not self._waiting or self._waiting[0][0] > end:
                self._now = end
                return False
            at, _, future = heapq.heappop(self._waiting)
            self._now = max(self._now, at)
            future.set_result(None)

    async def _settle(self) -> None:
        """Wait until nothing can proceed unless time passes."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        while ready:
            await asyncio.sleep(0)
