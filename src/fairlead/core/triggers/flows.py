"""Flows of start-time fair queueing (Goyal, Vin and Cheng 1996): a flow for each fairness key of a
fair lane, with one rank for all its triggers.

The rank of a flow is its next start tag. A trigger that runs starts at the rank, or at the virtual
time if that is later, and moves the rank one stride beyond its start. So waiting costs a key
nothing, and a key that a limit held back does not catch up on what it could not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop
from typing import TYPE_CHECKING

from fairlead.core.fair.passes import STRIDE_SCALE, stride
from fairlead.model import Trigger

if TYPE_CHECKING:
    from fairlead.core.triggers.columns import Cell, Column

MOST_IDLE = 50_000
"""Keys without triggers in the table whose ranks a lane keeps. If there are more, those that are
least ahead of the virtual time are dropped, and may gain one stride."""

_FEWEST = 1000
"""Number of flows below which idle ones are not dropped."""

CellLevel = tuple[int, int, int, "Cell"]
"""(pass, id, number of its first trigger, cell): the order of a cell in its flow."""


class VirtualTime:
    """Virtual time of one priority: the highest rank at which a trigger has started. All its lanes
    share it."""

    __slots__ = ("next_fifo", "now")

    def __init__(self) -> None:
        self.now = 0
        self.next_fifo = 0
        """Rank of the next fifo trigger."""

    def fifo_rank(self) -> int:
        """Return the rank of one more trigger of fifo queues."""
        rank = max(self.now, self.next_fifo)
        self.next_fifo = rank + STRIDE_SCALE
        return rank


class FairLane:
    """Flows of one fair lane, by fairness key."""

    __slots__ = ("_most", "flows", "priority", "queue", "time", "weights")

    def __init__(
        self, queue: str, priority: int, time: VirtualTime, weights: Mapping[str, float]
    ) -> None:
        """`weights`: weights set at run time, by key; the mapping may change at any time."""
        self.queue = queue
        self.priority = priority
        self.time = time
        self.weights = weights
        self.flows: dict[str, Flow] = {}
        """Flows with triggers in the table, and idle ones, until `_tidy` drops them."""
        self._most = _FEWEST
        """Number of flows at which idle ones are dropped."""

    def open(self, key: str) -> Flow:
        """Return a new flow of a key."""
        if len(self.flows) >= self._most:
            self._tidy()
        flow = self.flows[key] = Flow(key, self, self.time.now)
        return flow

    def _tidy(self) -> None:
        """Drop idle flows whose rank the virtual time has passed: they start at the virtual time
        again. Of the others keep those furthest ahead."""
        idle = [flow for flow in self.flows.values() if flow.cells is None]
        ahead = [flow for flow in idle if flow.rank > self.time.now]
        if len(ahead) > MOST_IDLE:
            ahead.sort(key=lambda flow: flow.rank, reverse=True)
            del ahead[MOST_IDLE // 2 :]
        kept = set(ahead)
        for flow in idle:
            if flow not in kept:
                del self.flows[flow.key]
        self._most = max(_FEWEST, 2 * len(self.flows))


class Flow:
    """Triggers of one key, in cells: one for each column in which the key has triggers.

    A flow with one cell waits in the column of that cell. A flow with several cells is ready in its
    own right: `heads` has its cells whose columns were open when last seen.
    """

    __slots__ = ("cells", "heads", "key", "lane", "position", "rank")

    def __init__(self, key: str, lane: FairLane, rank: int) -> None:
        self.key = key
        self.lane = lane
        self.rank = rank
        self.cells: Cell | dict[Column, Cell] | None = None
        """The only cell, or cells by column once there were several; None if there are none."""
        self.heads: list[CellLevel] = _NO_HEADS
        """Heap of cells; those that have left are skipped."""
        self.position: tuple[int, tuple[int, int, int, object], Column | Flow] | None = None
        """Position among the ready flows and columns, as for a column."""

    def __lt__(self, other: object) -> bool:
        """Return False: positions of equal order come in any order."""
        return False

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.lane.queue

    def cell(self, column: Column) -> Cell | None:
        """Return the cell in this column."""
        cells = self.cells
        if isinstance(cells, dict):
            return cells.get(column)
        return cells if cells is not None and cells.column is column else None

    def add(self, cell: Cell) -> None:
        """Add a cell in a column in which the flow has none."""
        cells = self.cells
        if cells is None:
            if self.rank < self.lane.time.now:
                self.rank = self.lane.time.now
            self.cells = cell
            return
        if not isinstance(cells, dict):
            cells.is_shared = True
            self.cells = cells = {cells.column: cells}
            self.heads = []
        cell.is_shared = True
        cells[cell.column] = cell

    def remove(self, cell: Cell) -> None:
        """Remove a cell without triggers."""
        cells = self.cells
        if isinstance(cells, dict):
            del cells[cell.column]
            if cells:
                return
            self.heads = _NO_HEADS
        self.cells = None

    def first(self) -> Cell | None:
        """Return the cell with the lowest level in `heads`."""
        heads = self.heads
        while heads:
            cell = heads[0][3]
            if cell.position is heads[0]:
                return cell
            heappop(heads)
        return None

    def pop(self) -> None:
        """Remove the first of the heads."""
        heappop(self.heads)

    def ran(self, trigger: Trigger) -> None:
        """Record that a trigger of the flow has started."""
        time, rank = self.lane.time, self.rank
        if rank > time.now:
            time.now = rank
        else:
            rank = time.now
        weights = self.lane.weights
        weight = weights.get(self.key, trigger.weight) if weights else trigger.weight
        self.rank = rank + stride(weight)


class TimedLane:
    """Offset between the passes of a lane that shares run time and ranks of the table: `base` +
    pass is the rank. A lane that was idle starts at the virtual time."""

    __slots__ = ("base", "size")

    def __init__(self) -> None:
        self.base = 0
        self.size = 0

    def enter(self, pass_: int, now: int) -> int:
        """Count a trigger that comes into the table at this pass; return its rank. `now`: virtual
        time of the table."""
        if not self.size:
            self.base = max(self.base, now - pass_)
        self.size += 1
        return self.base + pass_


_NO_HEADS: list[CellLevel] = []
"""Heads of every flow with at most one cell."""
