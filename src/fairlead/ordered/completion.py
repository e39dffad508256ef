"""The completion of a partition's runs: their ends are written in batches, one on its way while the
next one gathers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fairlead.model import RunEnd

MOST_AT_ONCE = 500
"""Ends in one write."""


class Completion:
    """Holds the ends that are not in the store yet. It outlives the failures of its partition: what
    could not be written is written after the next take-over."""

    def __init__(self, written: Callable[[Sequence[RunEnd]], None]) -> None:
        self._written = written
        self._more = asyncio.Event()
        self.waiting: list[RunEnd] = []

    def add(self, end: RunEnd) -> None:
        """A run has ended like this."""
        self.waiting.append(end)
        self._more.set()

    async def run(self, write: Callable[[Sequence[RunEnd]], Awaitable[None]]) -> None:
        """Write for as long as the partition lives."""
        while True:
            while self.waiting:
                ends = self.waiting[:MOST_AT_ONCE]
                await write(ends)
                del self.waiting[: len(ends)]
                self._written(ends)
            self._more.clear()
            await self._more.wait()
