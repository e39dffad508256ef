"""Tasks on virtual nodes, by a virtual clock, to find when each of them starts. The core decides;
this module only handles events.

A virtual node has the trigger table and the ledger of slots and limits of a worker, composed as in
the engine, with memory for all triggers. A task is claimed when it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from sys import maxsize
from typing import NamedTuple

from fairlead.clock import MICROS
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
    ) -> None:
        """`slots`: tasks that run at once. `limits`: limits of each task beside the slots.
        `is_fair`: False for the order of arrival."""
        self._ledger = SlotLedger(slots)
        self._ledger.register_queue(queue, *limits)
        self._table = TriggerTable(self._ledger)
        if is_fair:
            self._table.weigh(queue, {})

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


class Schedule(NamedTuple):
    """Times of each task, in microseconds."""

    started: list[int]
    order: list[int]
    """Numbers of the tasks in the order in which they started."""


def schedule(
    tasks: Sequence[Trigger],
    runs: Sequence[int],
    nodes: Sequence[VirtualNode],
    arrived: Sequence[int],
) -> Schedule:
    """Run every task once. At one instant, runs end first, then tasks arrive, then tasks start.

    `tasks`: their `seq` is their number from 0. `runs`: microseconds that each task runs. `nodes`:
    share the partitions. `arrived`: time of arrival of each task, ascending.
    """
    home = [nodes[task.partition % len(nodes)] for task in tasks]
    started = [-1] * len(tasks)
    order: list[int] = []
    running: list[tuple[int, int]] = []
    """Heap of (time of the end, number of the task)."""
    new = 0
    while new < len(tasks) or running:
        now = min([*arrived[new : new + 1], *(end for end, _ in running[:1])])
        seconds = now / MICROS
        touched: dict[VirtualNode, None] = {}
        while running and running[0][0] <= now:
            ended = heappop(running)[1]
            touched[home[ended]] = None
            home[ended].release(tasks[ended], seconds)
        while new < len(tasks) and arrived[new] <= now:
            touched[home[new]] = None
            home[new].push((tasks[new],))
            new += 1
        for node in touched:
            if node.room:
                for task in node.take(seconds):
                    started[task.seq] = now
                    order.append(task.seq)
                    heappush(running, (now + runs[task.seq], task.seq))
    assert not tasks or min(started) >= 0, "the core did not start a task"
    return Schedule(started, order)
