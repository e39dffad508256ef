"""The two orders that are compared: first in, first out; and fair, by the core that the engine runs
on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from fairlead.core.fair.backlog import Changes
from fairlead.core.fair.counters import Counters
from fairlead.lab.simulate.lane import ListedBacklog
from fairlead.model import Level, Trigger


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
    """A fair backlog over a list."""

    def __init__(
        self, counters: Counters, capacity: int, weights: Mapping[str, float] | None = None
    ) -> None:
        """`weights`: those set at run time, by key; the mapping may change while the lane is in
        use."""
        self._backlog = ListedBacklog(counters, capacity, self._apply, weights)
        self._ready: dict[Level, Trigger] = {}
        self._levels: list[Level] = []
        """A heap of the levels that were ready; one that is not any longer is skipped when it is
        met."""

    def push(self, tasks: Sequence[Trigger]) -> None:
        self._backlog.push(tasks)

    def pick(self) -> Trigger | None:
        while self._levels:
            task = self._ready.pop(heappop(self._levels), None)
            if task is not None:
                self._backlog.dispatch([task])
                return task
        return None

    def _apply(self, changes: Changes) -> None:
        for task in changes.dropped:
            assert task.level is not None
            del self._ready[task.level]
        for task in changes.added:
            assert task.level is not None
            self._ready[task.level] = task
            heappush(self._levels, task.level)


class Order:
    """Several partitions, polled in turn; in each the lowest priority number that has a task goes
    first."""

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
            return next(
                task
                for lane in self._lanes[partition].values()
                if (task := lane.pick()) is not None
            )
        return None
