"""Times at which limits may be tried again although no slot was freed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from itertools import count


class Retries:
    """The earliest retry time of each limit, in monotonic seconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable]] = []
        self._times: dict[Hashable, float] = {}
        """Valid time of each limit; others in the heap are stale."""
        self._ties = count()

    def add(self, limit: Hashable, at: float) -> None:
        """Note that a limit may be tried again at a time."""
        if at < self._times.get(limit, float("inf")):
            self._times[limit] = at
            heappush(self._heap, (at, next(self._ties), limit))

    def next(self) -> float | None:
        """Return the earliest time, or None if there is none."""
        heap = self._heap
        while heap and self._times.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[Hashable]:
        """Remove and yield the limits whose time has come."""
        while (at := self.next()) is not None and at <= now:
            limit = heappop(self._heap)[2]
            del self._times[limit]
            yield limit

    def clear(self) -> None:
        """Drop all times."""
        self._heap.clear()
        self._times.clear()
