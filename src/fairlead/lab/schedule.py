"""Tasks on a virtual clock, to find when each of them starts. The core decides; this module only
handles events."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from fairlead.clock import MICROS
from fairlead.lab.node import VirtualNode
from fairlead.model import Trigger


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
