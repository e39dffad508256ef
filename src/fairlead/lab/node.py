"""A virtual node: the trigger table, the ledger of slots and limits, and the fair backlogs of its
partitions.

Its parts are the core of a worker, composed as in the engine; a task is claimed and acked when it
is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import maxsize

from fairlead.core.fair.backlog import Changes
from fairlead.core.fair.counters import Counters
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.lab.lane import ListedBacklog
from fairlead.model import Trigger


class VirtualNode:
    """A node that takes tasks by time of arrival, or fairly. Times are seconds of the simulation's
    clock."""

    def __init__(
        self,
        queue: str,
        slots: int,
        limits: Sequence[ConcurrencyPolicy] = (),
        is_fair: bool = True,
        in_memory: int = maxsize,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`slots`: tasks that run at once. `limits`: limits of each task beside the slots.
        `is_fair`: False for the order of arrival. `in_memory`: triggers of each lane in memory.
        `weights`: weights set at run time, by key; the
        mapping may change while the node is in use."""
        self._ledger = SlotLedger(slots)
        self._ledger.register_queue(queue, *limits)
        self._table = TriggerTable(self._ledger)
        self._is_fair = is_fair
        self._in_memory = in_memory
        self._weights = weights
        if weights is not None:
            self._table.weigh(queue, weights)
        self._lanes: dict[tuple[int, int], ListedBacklog] = {}
        """Lanes by partition and priority."""

    @property
    def room(self) -> int:
        """Number of free slots."""
        return self._ledger.room

    def push(self, tasks: Sequence[Trigger]) -> None:
        """Add tasks that arrive together, all of one partition and priority."""
        if not self._is_fair:
            for task in tasks:
                self._table.push(task)
            return
        where = (tasks[0].partition, tasks[0].priority)
        lane = self._lanes.get(where)
        if lane is None:
            counters = Counters(maxsize)
            lane = ListedBacklog(counters, self._in_memory, self._apply, self._weights)
            self._lanes[where] = lane
        lane.push(tasks)

    def take(self, now: float) -> list[Trigger]:
        """Start and return every task that slots and limits have room for."""
        taken, failed = self._table.take(maxsize, now)
        assert not failed  # limits of a simulation raise nothing
        if self._is_fair:
            for task in taken:
                self._lanes[task.partition, task.priority].dispatch((task,))
        return taken

    def release(self, task: Trigger, now: float) -> None:
        """End the run of the task."""
        limits = self._ledger.release(task, now)
        if limits:
            self._table.freed(limits)

    def _apply(self, changes: Changes) -> None:
        if changes.dropped:
            self._table.remove(changes.dropped)
        for task in changes.added:
            self._table.push(task)


def simulated_task(
    number: int,
    key: str,
    weight: float,
    priority: int,
    partition: int,
    queue: str = "",
    name: str = "",
) -> Trigger:
    """Return a task of this key; `number` is its id and its `seq`."""
    return Trigger(
        id=str(number),
        version=1,
        queue=queue,
        partition=partition,
        name=name,
        priority=priority,
        fairness_key=key,
        weight=weight,
        ordering_key=None,
        seq=number,
    )
