"""Ends of a partition's runs: written in batches, one on its way while the next one gathers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fairlead.model import RunEnd

MOST_AT_ONCE = 500
"""Ends in one write."""


class Completion:
    """Ends that are not in the store yet. They outlive the failures of their partition: what could
    not be written is written after the next take-over."""

    def __init__(self, on_written: Callable[[Sequence[RunEnd]], None]) -> None:
        self._on_written = on_written
        self._more = asyncio.Event()
        self.waiting: list[RunEnd] = []

    def add(self, end: RunEnd) -> None:
        """Have the end of a run written."""
        self.waiting.append(end)
        self._more.set()

    async def run(self, write: Callable[[Sequence[RunEnd]], Awaitable[None]]) -> None:
        """Write until the tenure ends."""
        while True:
            while self.waiting:
                ends = self.waiting[:MOST_AT_ONCE]
                await write(ends)
                del self.waiting[: len(ends)]
                self._on_written(ends)
            self._more.clear()
            await self._more.wait()
