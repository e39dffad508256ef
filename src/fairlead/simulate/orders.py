"""The two orders that are compared: first in, first out; and fair, by the core that the engine runs on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from fairlead.core.backlog import Backlog, Changes, Timing, Write
from fairlead.core.counters import Counters
from fairlead.core.passes import Passes
from fairlead.model import LaneRecord, Level, Trigger
from fairlead.simulate.store import ListStore

_NO_CLOCK = 0.0
_RANGE_ID = 1


class Lane(Protocol):
    """One priority of one partition."""

    def push(self, tasks: Sequence[Trigger]) -> None:
        """These arrive."""

    def pick(self) -> Trigger | None:
        """The next one to run; None: there is none."""


class FifoLane:
    """First in, first out."""

    def __init__(self) -> None:
        self._tasks: deque[Trigger] = deque()

    def push(self, tasks: Sequence[Trigger]) -> None:
        self._tasks.extend(tasks)

    def pick(self) -> Trigger | None:
        return self._tasks.popleft() if self._tasks else None


class FairLane:
    """A fair backlog over a list. What is picked is acked at once, and no read or write takes time or fails."""

    def __init__(self, counters: Counters, capacity: int) -> None:
        self._backlog = Backlog(_RANGE_ID, LaneRecord(), _Passes(counters), capacity, Timing(), is_new=True)
        self._store = ListStore()
        self._ready: dict[Level, Trigger] = {}
        self._levels: list[Level] = []
        """A heap of the levels that were ready; one that is not any longer is skipped when it is met."""

    def push(self, tasks: Sequence[Trigger]) -> None:
        placed = self._backlog.place(tasks)
        if isinstance(placed, Write):
            self._store.write(placed.entries)
            placed = self._backlog.written(placed)
        self._apply(placed)
        self._settle()

    def pick(self) -> Trigger | None:
        while self._levels:
            task = self._ready.pop(heappop(self._levels), None)
            if task is not None:
                self._backlog.take([task])
                self._backlog.ack([task])
                self._settle()
                return task
        return None

    def _settle(self) -> None:
        while (read := self._backlog.next_read()) is not None:
            self._apply(self._backlog.read(self._store.read_above(read.above, read.limit)))
        if (through := self._backlog.next_delete(_NO_CLOCK)) is not None:
            self._store.delete_through(through)
            self._backlog.deleted(through, _NO_CLOCK)

    def _apply(self, changes: Changes) -> None:
        for task in changes.dropped:
            assert task.level is not None
            del self._ready[task.level]
        for task in changes.added:
            assert task.level is not None
            self._ready[task.level] = task
            heappush(self._levels, task.level)


class Order:
    """Several partitions, polled in turn; in each the lowest priority number that has a task goes first."""

    def __init__(self, partitions: int, lane: Callable[[], Lane]) -> None:
        self._new_lane = lane
        self._lanes: list[dict[int, Lane]] = [{} for _ in range(partitions)]
        """By partition, then by priority, the first to be picked from first."""
        self._waiting = [0] * partitions
        self._turn = 0

    def push(self, tasks: Iterable[Trigger]) -> None:
        """These arrive."""
        by_lane: dict[tuple[int, int], list[Trigger]] = {}
        for task in tasks:
            by_lane.setdefault((task.partition, task.priority), []).append(task)
        for (partition, priority), pushed in by_lane.items():
            lanes = self._lanes[partition]
            if priority not in lanes:
                lanes[priority] = self._new_lane()
                self._lanes[partition] = lanes = dict(sorted(lanes.items()))
            lanes[priority].push(pushed)
            self._waiting[partition] += len(pushed)

    def pick(self) -> Trigger | None:
        """The next one to run; None: nothing is left."""
        partitions = len(self._lanes)
        for step in range(partitions):
            partition = (self._turn + step) % partitions
            if not self._waiting[partition]:
                continue
            self._turn = partition + 1
            self._waiting[partition] -= 1
            return next(task for lane in self._lanes[partition].values() if (task := lane.pick()) is not None)
        return None


class _Passes(Passes):
    def heaviest(self, most: int, unplaced: Iterable[tuple[str, int]] = ()) -> list[tuple[str, int]]:
        """None: nobody takes over in a simulation, and sorting a million keys for every write would take long."""
        return []
