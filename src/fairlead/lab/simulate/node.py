"""One node of a simulation: the trigger table, the booking of slots and limits, and the fair
backlogs of its partitions.

The same core as in a worker, put together as the engine does it. What is taken is grabbed and acked
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import maxsize

from fairlead.core.fair.backlog import Changes
from fairlead.core.fair.counters import Counters
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.lab.simulate.lane import ListedBacklog
from fairlead.model import Trigger


class Node:
    """Times are seconds of the simulation's clock."""

    def __init__(
        self, queue: str, slots: int, limits: Sequence[ConcurrencyPolicy] = (), is_fair: bool = True
    ) -> None:
        """`slots`: tasks that run here at once; `limits`: what each of them books besides;
        `is_fair`: else by arrival."""
        self._booking = SlotLedger(slots)
        self._booking.register_queue(queue, *limits)
        self._table = TriggerTable(self._booking)
        self._is_fair = is_fair
        self._lanes: dict[tuple[int, int], ListedBacklog] = {}
        """By partition and priority."""

    @property
    def room(self) -> int:
        """Slots that are free."""
        return self._booking.room

    def push(self, task: Trigger) -> None:
        """It arrives."""
        if not self._is_fair:
            self._table.push(task)
            return
        where = (task.partition, task.priority)
        lane = self._lanes.get(where)
        if lane is None:
            # All in memory: where a backlog keeps its triggers makes no difference to their order.
            lane = self._lanes[where] = ListedBacklog(Counters(maxsize), maxsize, self._apply)
        lane.push((task,))

    def take(self, now: float) -> list[Trigger]:
        """What starts now: all that slots and limits have room for."""
        taken, failed = self._table.take(maxsize, now)
        assert not failed  # our own limits raise nothing
        if self._is_fair:
            for task in taken:
                self._lanes[task.partition, task.priority].dispatch((task,))
        return taken

    def free(self, task: Trigger, now: float) -> None:
        """Its run has ended."""
        limits = self._booking.free(task, now)
        if limits:
            self._table.freed(limits)

    def _apply(self, changes: Changes) -> None:
        for task in changes.added:
            self._table.push(task)
