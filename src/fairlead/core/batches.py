"""Batches that a server may refuse: how many entries one write may have, and when a refused entry
is tried again.

No clock and no I/O: the caller brings the time and reports what the server accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

FEWEST_GOOD, MOST_GOOD = 8, 1024
"""Full batches in a row that the server must accept before the size is doubled: at first, and after
many doublings that it refused."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a refused entry is tried again: doubled after each refusal."""

_FACTOR = 10
"""Least pause after a refusal, as a multiple of the time that the refused write took."""


class BatchSize:
    """Maximum number of entries in one write, learnt from what the server accepts and refuses.

    A refused batch halves the size. Accepted full batches double it again, so that a limit that was
    lowered for an hour does not slow the node for ever. Each doubling that the server refuses
    doubles the number of full batches before the next one, up to MOST_GOOD. If a single entry of a
    batch is refused, that entry was too large, not the batch: the size returns to the one before,
    as soon as the server accepts another entry, or with the next batch.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        """Maximum number of entries in the next write."""
        self._before: int | None = None
        """Size before the first refusal in the present batch; None if there was none."""
        self._is_single_refused = False
        self._is_doubled = False
        """Whether no full batch of the present size was accepted or refused since it doubled."""
        self._good = 0
        """Full batches accepted in a row."""
        self._needed = FEWEST_GOOD

    def begin(self) -> None:
        """Record that a new batch begins."""
        self._restore()
        self._before = None

    def refused(self, count: int) -> None:
        """Record that the limits of the server refused a write of `count` entries."""
        if self._before is None:
            self._before = self.now
        if count == 1:
            self._is_single_refused = True
        else:
            self.now = min(self.now, count // 2)
            self._needed = min(2 * self._needed, MOST_GOOD) if self._is_doubled else self._needed
            self._is_doubled = False
        self._good = 0

    def accepted(self, count: int) -> None:
        """Record that the server accepted a write of `count` entries."""
        if not self._restore() and count >= self.now:
            self._grow()

    def _restore(self) -> bool:
        """Return to the size before the refusals if a single entry caused them."""
        if not self._is_single_refused or self._before is None:
            return False
        self.now, self._is_single_refused = self._before, False
        return True

    def _grow(self) -> None:
        if self._is_doubled:
            self._is_doubled, self._needed = False, FEWEST_GOOD
        self._good += 1
        if self._good >= self._needed and self.now < self.most:
            self.now = min(2 * self.now, self.most)
            self._good, self._is_doubled = 0, True


@dataclass(eq=False)
class Refusal(Generic[T]):
    """An entry that the server refuses."""

    entry: T
    error: Exception
    """Error of the last try."""
    since: float
    """Monotonic seconds of the first refusal."""
    times: int = 1
    """Number of refusals."""


class Retries(Generic[T]):
    """Refused entries, each with the time of its next try. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Refusal[T]]] = []
        """Heap of (time of the next try, number, entry)."""
        self._count = 0
        self.is_last = False
        """Whether no entry is tried again after its next refusal."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Refusal[T]]:
        return iter([refusal for _, _, refusal in sorted(self._entries, key=lambda one: one[1])])

    @property
    def next_at(self) -> float:
        """Time of the next try; infinite if there is none."""
        return self._entries[0][0] if self._entries else math.inf

    def put(self, refusal: Refusal[T], now: float, took: float = 0.0) -> None:
        """Add an entry after a refusal. `took`: seconds that the refused write took."""
        pause = FIRST_PAUSE * 2.0 ** min(refusal.times - 1, 16)
        pause = max(min(pause, LONGEST_PAUSE), _FACTOR * took)
        self._push(math.inf if self.is_last else now + pause, refusal)

    def put_back(self, refusal: Refusal[T], now: float) -> None:
        """Put back an entry that `take` returned and that was not tried."""
        self._push(now, refusal)

    def take(self, now: float) -> Refusal[T] | None:
        """Take the entry that is due first; None if none is due."""
        return heappop(self._entries)[2] if self.next_at <= now else None

    def try_last(self, now: float) -> None:
        """Make every entry due once more, and no further time."""
        self.is_last = True
        self._entries = [(now, n, refusal) for _, n, refusal in self._entries]
        heapify(self._entries)

    def remove(self, matches: Callable[[T], bool]) -> list[T]:
        """Remove the entries that match, and return them."""
        removed = [each for each in self._entries if matches(each[2].entry)]
        self._entries = [each for each in self._entries if each not in removed]
        heapify(self._entries)
        return [refusal.entry for _, _, refusal in removed]

    def clear(self) -> list[T]:
        """Drop the entries, and return them."""
        entries = [refusal.entry for refusal in self]
        self._entries.clear()
        return entries

    def _push(self, at: float, refusal: Refusal[T]) -> None:
        heappush(self._entries, (at, self._count, refusal))
        self._count += 1
