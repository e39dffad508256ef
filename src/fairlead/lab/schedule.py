"""Tasks on a virtual clock, to find when each of them starts. The core decides; this module only
handles events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from fairlead.clock import MICROS
from fairlead.lab.node import VirtualNode
from fairlead.model import Trigger

Arrival = tuple[int, int]
"""(time in microseconds, number of the task)."""


class Schedule(NamedTuple):
    """Times of each task, in microseconds."""

    arrived: list[int]
    started: list[int]
    order: list[int]
    """Numbers of the tasks in the order in which they started."""


def schedule(
    tasks: Sequence[Trigger],
    runs: Sequence[int],
    nodes: Sequence[VirtualNode],
    coming: list[Arrival],
    after: Callable[[int, int], Iterable[Arrival]] | None = None,
) -> Schedule:
    """Run every task once. At one instant, runs end first, then tasks arrive, then tasks start.

    `tasks`: their `seq` is their number from 0. `runs`: microseconds that each task runs. `nodes`:
    share the partitions. `coming`: arrivals that wait for nothing, ascending; it is emptied.
    `after`: returns the arrivals that follow when a task ends at a time.
    """
    home = [nodes[task.partition % len(nodes)] for task in tasks]
    arrived, started = [0] * len(tasks), [-1] * len(tasks)
    order: list[int] = []
    running: list[Arrival] = []
    # Ascending lists are heaps.
    while coming or running:
        now = min(heap[0][0] for heap in (coming, running) if heap)
        seconds = now / MICROS
        touched: dict[VirtualNode, None] = {}
        while running and running[0][0] <= now:
            ended = heappop(running)[1]
            touched[home[ended]] = None
            home[ended].release(tasks[ended], seconds)
            for arrival in after(ended, now) if after is not None else ():
                heappush(coming, arrival)
        while coming and coming[0][0] <= now:
            new = heappop(coming)[1]
            arrived[new] = now
            touched[home[new]] = None
            home[new].push((tasks[new],))
        for node in touched:
            if node.room:
                for task in node.take(seconds):
                    started[task.seq] = now
                    order.append(task.seq)
                    heappush(running, (now + runs[task.seq], task.seq))
    assert not tasks or min(started) >= 0, "the core did not start a task"
    return Schedule(arrived, started, order)
