"""Writes to a store in batches, where the store may refuse single entries.

The writer divides a batch that the store refuses into halves, down to the refused entries. It tries
these again later, one by one, and writes all others at once. An unavailable store refuses nothing:
its error ends the write, and every entry stays.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from fairlead.clock import MICROS, Clock
from fairlead.core.batches import BatchSize
from fairlead.errors import BatchTooLarge, StoreUnavailable, WriteRefused
from fairlead.pauses import TimedEvent

T = TypeVar("T")
R = TypeVar("R")

Write: TypeAlias = Callable[[Sequence[T]], Awaitable[R]]
"""Writes entries and returns a result, or raises the error of the store."""

RETRY_SECONDS = 1.0
"""Least seconds between two refusals of entries that are tried again."""

_FACTOR = 10
"""Least pause after such a refusal, as a multiple of the time that the write took."""


def is_outage(error: BaseException) -> bool:
    """Return whether the error says nothing about the entries that were written."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, WriteRefused)


@dataclass(eq=False)
class Refusal(Generic[T]):
    """An entry that the store refuses."""

    entry: T
    error: Exception
    """Error of the last try."""


class BatchWriter(Generic[T, R]):
    """Entries that the store does not have yet. The entries must not depend on each other: the
    store gets them in another order after a refusal or an outage."""

    def __init__(
        self,
        most: int,
        clock: Clock,
        on_written: Callable[[Sequence[T], R], None],
        on_refused: Callable[[Refusal[T]], None],
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        """`most`: maximum number of entries in one write. `on_refused`: called with each refusal of
        an entry alone. `fatal`: errors that are no refusal and end the writer."""
        self.waiting: list[T] = []
        """Entries that the store has not refused."""
        self.refused: list[Refusal[T]] = []
        """Refused entries, the next one to try first."""
        self._retry_at = math.inf
        """Monotonic seconds of the next try of a refused entry."""
        self._size = BatchSize(most)
        self._clock = clock
        self._on_written = on_written
        self._on_refused = on_refused
        self._fatal = fatal
        self._more = asyncio.Event()
        self._retry = TimedEvent(clock)
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of entries that the store does not have yet."""
        return len(self.waiting) + len(self.refused)

    def add(self, entry: T) -> None:
        """Add an entry."""
        self.waiting.append(entry)
        self._more.set()

    def drop_refused(self, matches: Callable[[T], bool]) -> bool:
        """Drop the refused entries that match; return whether there was one."""
        before = len(self.refused)
        self.refused = [each for each in self.refused if not matches(each.entry)]
        return len(self.refused) < before

    def clear(self) -> list[T]:
        """Drop all entries, and return them."""
        entries = [*self.waiting, *(refusal.entry for refusal in self.refused)]
        self.waiting.clear()
        self.refused.clear()
        return entries

    # writing --------------------------------------------------------------------------------------

    async def run(self, write: Write[T, R]) -> None:
        """Write entries until cancelled: those that come during a write form the next batch. Raise
        the error of an unavailable store, or a fatal one."""
        while True:
            await self.flush(write)
            self._more.clear()
            await self._more.wait()

    async def flush(self, write: Write[T, R]) -> None:
        """Write all waiting entries, and defer those that the store refuses. Raise the error of
        an unavailable store, or a fatal one."""
        while self.waiting:
            await self._write_first(self._size.allowed, write)
        self._idle.set()

    async def _write_first(self, count: int, write: Write[T, R]) -> None:
        """Write the first entries; by halves, if the store refuses them."""
        entries = self.waiting[:count]
        if not entries:
            return
        try:
            result = await write(entries)
        except Exception as error:
            if self._is_no_refusal(error):
                # The next write begins with others: this one may cause the outage.
                self.waiting[:] = [*self.waiting[len(entries) :], *entries]
                self._size.refused(len(entries))
                raise
            if (half := len(entries) // 2) > 0:
                if isinstance(error, BatchTooLarge):
                    self._size.refused(len(entries))
                await self._write_first(half, write)
                await self._write_first(len(entries) - half, write)
                return
            del self.waiting[:1]
            self._refuse(Refusal(entries[0], error))
        else:
            self._size.accepted(len(entries))
            del self.waiting[: len(entries)]
            self._on_written(entries, result)

    def _is_no_refusal(self, error: Exception) -> bool:
        return is_outage(error) or isinstance(error, self._fatal)

    async def finish(self) -> None:
        """Wait until every waiting entry was written or refused, while `run` writes them."""
        while self.waiting:
            self._idle.clear()
            await self._idle.wait()

    # trying again ---------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal[T]) -> None:
        if not self.refused:
            self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        self.refused.append(refusal)
        self._retry.notify()
        self._on_refused(refusal)

    async def run_retries(self, write: Write[T, R]) -> None:
        """Try refused entries again when they are due, until cancelled. Raise the error of an
        unavailable store, or a fatal one."""
        while True:
            await self.retry(write)
            left = self.next_retry()
            await self._retry.wait(None if left is None else self._clock.now() + left)

    def next_retry(self) -> int | None:
        """Return the microseconds until a refused entry is tried again; None if there is none."""
        if not self.refused:
            return None
        left = self._retry_at - self._clock.monotonic()
        return max(0, math.ceil(left * MICROS)) + 1

    async def retry(self, write: Write[T, R]) -> None:
        """Try refused entries once more if a try is due: one by one, up to the first one that the
        store refuses again. Raise the error of an unavailable store, or a fatal one."""
        while self.refused and self._clock.monotonic() >= self._retry_at:
            refusal, began = self.refused[0], self._clock.monotonic()
            try:
                result = await write([refusal.entry])
            except Exception as error:
                if self._is_no_refusal(error):
                    raise
                if self._take(refusal):
                    self._refuse(Refusal(refusal.entry, error))
                now = self._clock.monotonic()
                self._retry_at = now + max(RETRY_SECONDS, _FACTOR * (now - began))
            else:
                if self._take(refusal):
                    self._on_written([refusal.entry], result)

    def _take(self, refusal: Refusal[T]) -> bool:
        """Remove a refused entry; return False if it was dropped meanwhile."""
        if is_there := refusal in self.refused:
            self.refused.remove(refusal)
        return is_there
