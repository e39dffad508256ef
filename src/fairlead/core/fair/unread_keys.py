"""Fairness keys of a lane with triggers that the channel keeps, by the virtual time at which the
next of these triggers is due.

A heap holds each key at its next pass. The next pass of a key grows when its triggers get levels,
so a key found first may be due later: it goes back. Finding a key costs O(log keys) amortised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.fair.passes import Passes


class UnreadKeys:
    """Keys that the channel has offered and the lane has not asked for since. A key may be here
    twice."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._heap: list[tuple[int, str]] = []
        """(next pass or less, key)."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, keys: Iterable[str]) -> None:
        """Add keys, or bring forward those whose next pass has gone back."""
        for key in keys:
            heappush(self._heap, (self._passes.next_pass(key), key))

    @property
    def due_at(self) -> int | None:
        """Lowest next pass; None if there is no key."""
        heap = self._heap
        while heap:
            pass_, key = heap[0]
            now = self._passes.next_pass(key)
            if now <= pass_:
                return pass_
            heapreplace(heap, (now, key))
        return None

    def take(self, through: int | None = None) -> Iterator[str]:
        """Remove and yield keys, lowest next pass first, as long as that is at or before
        `through`."""
        while (pass_ := self.due_at) is not None and (through is None or pass_ <= through):
            yield heappop(self._heap)[1]
