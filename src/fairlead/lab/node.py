"""A virtual node: the trigger table, and the ledger of slots and limits.

Its parts are the core of a worker, composed as in the engine, with memory for all triggers. A task
is claimed when it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import maxsize

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.slot_ledger import SlotLedger
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
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`slots`: tasks that run at once. `limits`: limits of each task beside the slots.
        `is_fair`: False for the order of arrival. `weights`: weights set at run time, by key; the
        mapping may change while the node is in use."""
        self._ledger = SlotLedger(slots)
        self._ledger.register_queue(queue, *limits)
        self._table = TriggerTable(self._ledger)
        if is_fair:
            self._table.weigh(queue, {} if weights is None else weights)

    @property
    def room(self) -> int:
        """Number of free slots."""
        return self._ledger.room

    def push(self, tasks: Sequence[Trigger]) -> None:
        """Add tasks that arrive together."""
        for task in tasks:
            self._table.push(task)

    def take(self, now: float) -> list[Trigger]:
        """Start and return every task that slots and limits have room for."""
        taken, failed = self._table.take(maxsize, now)
        assert not failed  # limits of a simulation raise nothing
        return taken

    def release(self, task: Trigger, now: float) -> None:
        """End the run of the task."""
        limits = self._ledger.release(task, now)
        if limits:
            self._table.freed(limits)


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
