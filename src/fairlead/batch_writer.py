"""Writes to a store in batches, where the store may refuse single entries.

The writer splits a batch that the store refuses into smaller pieces, down to the refused entries.
It tries each refused entry again later, in a write of its own, and writes all others at once.

An unavailable store refuses nothing: its error ends the write, and no entry counts as refused,
unless the store accepts other entries meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from fairlead.clock import MICROS, Clock
from fairlead.core.batches import BatchSize, Refusal, Retries
from fairlead.errors import BatchTooLarge, StoreUnavailable, WriteRefused
from fairlead.timed_event import TimedEvent

T = TypeVar("T")
R = TypeVar("R")

Write: TypeAlias = Callable[[Sequence[T]], Awaitable[R]]
"""Writes entries and returns a result, or raises the error of the store."""

RETRY_GAP = 0.1
"""Seconds between two tries of refused entries, so that many of them do not load the server."""


class StillFailing(Exception):
    """Raised by a write if the store stayed unavailable for several tries. The writer goes on with
    other entries, since this write may be the cause. The cause is the error of the last try."""


def is_outage(error: BaseException) -> bool:
    """Return whether the error says nothing about the entries that were written."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, WriteRefused)


class BatchWriter(Generic[T, R]):
    """Entries that the store does not have yet. The entries must not depend on each other: the
    store gets them in another order after a refusal."""

    def __init__(
        self,
        most: int,
        clock: Clock,
        on_written: Callable[[Sequence[T], R], None],
        on_refused: Callable[[Refusal[T], bool], None],
        fatal: tuple[type[Exception], ...] = (),
        on_too_large: Callable[[int, BatchTooLarge], None] = lambda count, error: None,
    ) -> None:
        """`most`: maximum number of entries in one write. `on_refused`: called with each refusal,
        and with whether the store has accepted other entries since the first one of this entry.
        `fatal`: errors that are no refusal and end the writer. `on_too_large`: called with the size
        of a batch that the limits of the server refuse."""
        self.waiting: list[T] = []
        """Entries that the store has not refused."""
        self.retries = Retries[T]()
        self.size = BatchSize(most)
        self._clock = clock
        self._on_written = on_written
        self._on_refused = on_refused
        self._fatal = fatal
        self._on_too_large = on_too_large
        self._more = asyncio.Event()
        self._retry = TimedEvent(clock)
        self._idle = asyncio.Event()
        self._retried: Refusal[T] | None = None
        """Refused entry that is being tried again."""
        self._accepted = 0
        """Number of writes that the store has accepted."""
        self._seen: dict[int, int] = {}
        """Number of accepted writes when an entry was first refused or postponed, by the id of the
        object."""

    def __len__(self) -> int:
        """Return the number of entries that the store does not have yet."""
        return len(self.waiting) + len(self.refused)

    @property
    def refused(self) -> list[Refusal[T]]:
        """Entries that the store refuses, in the order of their last tries."""
        return [*self.retries] if self._retried is None else [*self.retries, self._retried]

    def add(self, entry: T) -> None:
        """Add an entry."""
        self.waiting.append(entry)
        self._more.set()

    def drop_refused(self, matches: Callable[[T], bool]) -> bool:
        """Drop the refused entries that match; return whether there was one."""
        dropped = self.retries.remove(matches)
        if self._retried is not None and matches(self._retried.entry):
            dropped.append(self._retried.entry)
            self._retried = None
        for entry in dropped:
            self._seen.pop(id(entry), None)
        return bool(dropped)

    def clear(self) -> list[T]:
        """Drop all entries, and return them."""
        waiting, retried = self.waiting[:], self._retried
        self.waiting.clear()
        self._seen.clear()
        self._retried = None
        return waiting + self.retries.clear() + ([] if retried is None else [retried.entry])

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
            await self._write_batch(write)
        self._idle.set()

    async def _write_batch(self, write: Write[T, R]) -> None:
        # The pieces of a batch, the next one last; together they are the beginning of `waiting`.
        self.size.begin()
        pieces = [min(len(self.waiting), self.size.now)]
        while pieces and self.waiting:
            count = min(pieces.pop(), len(self.waiting))
            if count > self.size.now:
                pieces.append(count - self.size.now)
                count = self.size.now
            entries, began = self.waiting[:count], self._clock.monotonic()
            accepted = self._accepted
            try:
                result = await write(entries)
            except Exception as error:
                if is_outage(error) or isinstance(error, self._fatal):
                    raise
                if isinstance(error, BatchTooLarge):
                    self.size.refused(count)
                    if count > 1:
                        self._on_too_large(count, error)
                        pieces.append(count)
                        continue
                if count > 1:
                    pieces += [count - count // 2, count // 2]
                    continue
                del self.waiting[:1]
                self._defer(entries[0], error, accepted, self._clock.monotonic() - began)
            else:
                self.size.accepted(count)
                del self.waiting[:count]
                self._on_accepted(entries, result)

    def _defer(self, entry: T, error: Exception, accepted: int, took: float) -> None:
        """`accepted`: number of accepted writes when the write of this entry began. A later one may
        have come after an outage that this write still met."""
        seen = self._seen.setdefault(id(entry), accepted)
        if isinstance(error, StillFailing):
            if seen == accepted:
                self.waiting.append(entry)  # the store accepts nothing: it is unavailable
                return
            error = _cause_of(error)
        refusal = Refusal(entry, error, self._clock.monotonic())
        self.retries.put(refusal, self._clock.monotonic(), took)
        self._retry.notify()
        self._on_refused(refusal, self._accepted > seen)

    def _on_accepted(self, entries: Sequence[T], result: R) -> None:
        self._accepted += 1
        if self._seen:
            for entry in entries:
                self._seen.pop(id(entry), None)
        self._on_written(entries, result)

    # trying again ---------------------------------------------------------------------------------

    async def run_retries(self, write: Write[T, R]) -> None:
        """Try refused entries again when they are due, until cancelled. Raise the error of an
        unavailable store, or a fatal one."""
        while True:
            if await self.retry(write):
                if not self.retries.is_last:
                    await self._clock.sleep(RETRY_GAP)
                continue
            left = self.next_retry()
            await self._retry.wait(None if left is None else self._clock.now() + left)

    def next_retry(self) -> int | None:
        """Return the microseconds until the next refused entry is due; None if there is none."""
        left = self.retries.next_at - self._clock.monotonic()
        return None if left == math.inf else max(0, math.ceil(left * MICROS)) + 1

    async def retry(self, write: Write[T, R]) -> bool:
        """Try refused entries that are due once more, up to the first one that the store refuses
        again. Return whether there was such an entry: wait for RETRY_GAP before the next call.
        Raise the error of an unavailable store, or a fatal one."""
        while (refusal := self.retries.take(self._clock.monotonic())) is not None:
            self._retried = refusal
            is_refused = await self._try_again(refusal, write)
            self._idle.set()
            if is_refused:
                return True
        return False

    async def _try_again(self, refusal: Refusal[T], write: Write[T, R]) -> bool:
        """Return whether the store refuses the entry."""
        began = self._clock.monotonic()
        try:
            result = await write([refusal.entry])
        except BaseException as error:
            is_dropped, self._retried = self._retried is not refusal, None
            if (
                not isinstance(error, Exception)
                or is_outage(error)
                or isinstance(error, self._fatal)
            ):
                if not is_dropped:
                    self.retries.put_back(refusal, began)
                raise
            if is_dropped:
                return True
            refusal.error = _cause_of(error) if isinstance(error, StillFailing) else error
            refusal.times += 1
            now = self._clock.monotonic()
            self.retries.put(refusal, now, now - began)
            self._on_refused(refusal, self._accepted > self._seen.get(id(refusal.entry), 0))
            return True
        is_dropped, self._retried = self._retried is not refusal, None
        if not is_dropped:
            self._on_accepted([refusal.entry], result)
        return False

    async def finish(self) -> None:
        """Wait until every waiting entry was written, and every refused one tried a last time,
        while `run` and `run_retries` write them."""
        self.retries.try_last(self._clock.monotonic())
        self._retry.notify()
        while self.waiting or self._retried is not None or self.retries.next_at < math.inf:
            self._idle.clear()
            await self._idle.wait()


def _cause_of(error: StillFailing) -> Exception:
    return error.__cause__ if isinstance(error.__cause__, Exception) else error
