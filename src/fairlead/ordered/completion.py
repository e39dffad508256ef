"""Ends of a partition's runs, written in batches: the ends that come during a write form the next
batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fairlead.model import RunEnd

MOST_AT_ONCE = 500
"""Maximum number of ends in one write."""


class OrderedCompletion:
    """Ends that the store does not have yet. If a partition fails, its next tenure writes the
    waiting ends."""

    def __init__(self, on_written: Callable[[Sequence[RunEnd]], None]) -> None:
        self._on_written = on_written
        self._more = asyncio.Event()
        self.waiting: list[RunEnd] = []

    def add(self, end: RunEnd) -> None:
        """Add the end of a run."""
        self.waiting.append(end)
        self._more.set()

    async def run(self, write: Callable[[Sequence[RunEnd]], Awaitable[None]]) -> None:
        """Write ends until cancelled."""
        while True:
            while self.waiting:
                ends = self.waiting[:MOST_AT_ONCE]
                await write(ends)
                del self.waiting[: len(ends)]
                self._on_written(ends)
            self._more.clear()
            await self._more.wait()
