"""The order in which polls pick tasks: by arrival, or fairly; a virtual node for each partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlead.lab.node import Node
from fairlead.model import Trigger

_NO_CLOCK = 0.0


class Order:
    """Several partitions, polled in turn; in each the lowest priority number that has a task goes
    first."""

    def __init__(self, partitions: int, node: Callable[[], Node]) -> None:
        """`node`: makes the node of one partition, with one slot."""
        self._nodes = [node() for _ in range(partitions)]
        self._waiting = [0] * partitions
        self._next = 0
        """The partition to be polled next."""

    def push(self, tasks: Iterable[Trigger]) -> None:
        """Let these arrive together."""
        by_lane: dict[tuple[int, int], list[Trigger]] = {}
        for task in tasks:
            by_lane.setdefault((task.partition, task.priority), []).append(task)
        for (partition, _), pushed in by_lane.items():
            self._nodes[partition].push(pushed)
            self._waiting[partition] += len(pushed)

    def pick(self) -> Trigger | None:
        """Return the next task to run; None: nothing is left."""
        partitions = len(self._nodes)
        for step in range(partitions):
            partition = (self._next + step) % partitions
            if not self._waiting[partition]:
                continue
            self._next = partition + 1
            self._waiting[partition] -= 1
            node = self._nodes[partition]
            (task,) = node.take(_NO_CLOCK)
            # A poll only picks: how long the task runs is no matter, so its slot is free at once.
            node.release(task, _NO_CLOCK)
            return task
        return None
