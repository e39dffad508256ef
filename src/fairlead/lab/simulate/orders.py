"""The order in which polls pick tasks, by arrival or fairly, with a virtual node for each
partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlead.lab.node import VirtualNode
from fairlead.model import Trigger

_NO_CLOCK = 0.0


class Order:
    """Several partitions, polled in rotation. In each partition, the least priority number that has
    a task goes first."""

    def __init__(self, partitions: int, node: Callable[[], VirtualNode]) -> None:
        """`node`: makes the node of one partition, with one slot."""
        self._nodes = [node() for _ in range(partitions)]
        self._waiting = [0] * partitions
        self._next = 0
        """The partition of the next poll."""

    def push(self, tasks: Iterable[Trigger]) -> None:
        """Add tasks that arrive together."""
        by_lane: dict[tuple[int, int], list[Trigger]] = {}
        for task in tasks:
            by_lane.setdefault((task.partition, task.priority), []).append(task)
        for (partition, _), pushed in by_lane.items():
            self._nodes[partition].push(pushed)
            self._waiting[partition] += len(pushed)

    def pick(self) -> Trigger | None:
        """Return the next task to run; None if nothing is left."""
        partitions = len(self._nodes)
        for step in range(partitions):
            partition = (self._next + step) % partitions
            if not self._waiting[partition]:
                continue
            self._next = partition + 1
            self._waiting[partition] -= 1
            node = self._nodes[partition]
            (task,) = node.take(_NO_CLOCK)
            # A poll only picks: the run time does not matter, so the slot is free at once.
            node.release(task, _NO_CLOCK)
            return task
        return None
