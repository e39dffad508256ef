"""Ends of a partition's runs, written in batches: the ends that come during a write form the next
batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from fairlead.errors import BatchTooLarge
from fairlead.model import RunEnd

log = logging.getLogger("fairlead.ordered")

MOST_AT_ONCE = 500
"""Maximum number of ends in one write."""


class OrderedCompletion:
    """Ends that the store does not have yet. If a partition fails, its next tenure writes the
    waiting ends."""

    def __init__(self, on_written: Callable[[Sequence[RunEnd]], None]) -> None:
        self._on_written = on_written
        self._more = asyncio.Event()
        self._most = MOST_AT_ONCE
        """Maximum number of ends in one write that the limits of the server allow."""
        self.waiting: list[RunEnd] = []

    def add(self, end: RunEnd) -> None:
        """Add the end of a run."""
        self.waiting.append(end)
        self._more.set()

    async def run(self, write: Callable[[Sequence[RunEnd]], Awaitable[None]]) -> None:
        """Write ends until cancelled, in smaller batches after the server has refused one. Raise
        BatchTooLarge if it refuses a single end."""
        while True:
            while self.waiting:
                ends = self.waiting[: self._most]
                try:
                    await write(ends)
                except BatchTooLarge as error:
                    if len(ends) == 1:
                        raise
                    self._most = len(ends) // 2
                    log.warning(
                        "the server refuses a batch of ends of this size; writing smaller ones",
                        extra={"refused": len(ends), "ends": self._most, "error": str(error)},
                    )
                    continue
                del self.waiting[: len(ends)]
                self._on_written(ends)
            self._more.clear()
            await self._more.wait()
