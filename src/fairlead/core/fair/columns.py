"""Columns of triggers that the same limits stop, and the lines in which columns wait for those
limits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from fairlead.core.fair.entries import Entries, Entry
from fairlead.core.fair.flows import CellLevel, Flow
from fairlead.core.fair.heads import Heads
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.model import Trigger

Order = tuple[int, int, int, int, Any]
"""(priority, rank, pass of the level, id of the level, what has this order): the order of the first
trigger of a cell, column or flow in the table. A trigger without a level has 0 as the pass, and its
position. A cell of a tenant with several keys has (priority, rank, rank of the first key, its level
in one number, cell)."""


class Cell(Entries):
    """Triggers of one flow in one column, by level. Subclass: `tenant_cells.TenantCell`."""

    __slots__ = ("column", "flow", "position")

    def __init__(self, first: Entry, column: Column, flow: Flow) -> None:
        # As in `Entries`, without a call: most cells of many keys have one trigger.
        self.first = first
        self._rows = None
        self._start = 0
        self.column = column
        self.flow = flow
        """Flow that gives the rank."""
        self.position: Order | CellLevel | None = None
        """Position in the heads of the flow or of the column. Others are stale."""

    def __lt__(self, other: object) -> bool:
        """Return False: positions of equal order come in any order."""
        return False

    def order(self, holder: Cell | Column | Flow) -> Order:
        """Return the order of the first trigger, for the cell, or its column or flow."""
        first, flow = self.first, self.flow
        return (flow.lane.priority, flow.rank, first[0], first[1], holder)

    def place(self) -> CellLevel:
        """Return the position in the heads of the flow."""
        return (*self.first[:3], self)

    def leave(self) -> None:
        """Note that the cell is dropped."""


class Column:
    """Triggers that the same limits stop, in cells by flow."""

    __slots__ = (
        "cells",
        "heads",
        "is_open",
        "key",
        "line",
        "position",
        "priority",
        "queue",
        "released_by",
        "strands",
        "taken",
    )

    def __init__(self, priority: int, key: Hashable, queue: str) -> None:
        self.priority = priority
        self.key = key
        self.queue = queue
        self.cells: dict[Flow, Cell] = {}
        """All cells, by flow."""
        self.heads = Heads()
        """Cells that were found here while the column was closed. Those that have left are skipped,
        and the ranks of others may be too low."""
        self.strands: dict[str, Strand] = {}
        """Triggers with an ordering key, by ordering key."""
        self.position: Order | None = None
        """Position among the ready or parked columns. Older positions of the column that are still
        among them are stale."""
        self.is_open = True
        """Whether the column may be tried: it is not parked."""
        self.line: tuple[Hashable, Hashable] = (None, None)
        """Limit that stopped the column last, and the different limit that stopped it before."""
        self.released_by: Hashable = None
        """Limit that released the column, until the column is tried."""
        self.taken = 0
        """Number of triggers taken since the last call of `TriggerTable.held_back`."""

    def __lt__(self, other: object) -> bool:
        """Return False: columns may share a position, and their order does not matter."""
        return False

    def wait(self, cell: Cell) -> Order:
        """Put a cell into the heads of the column; return its order."""
        cell.flow.wait(cell)
        order = cell.position = cell.order(cell)
        self.heads.push(order)
        return order

    def triggers(self) -> Iterator[Trigger]:
        """Yield the triggers, without strands that wait for their ordering keys, in any order."""
        for cell in self.cells.values():
            for entry in cell:
                strand: Strand | None = entry[4]
                if strand is None:
                    yield entry[3]
                elif strand.head is entry:
                    yield from [each[3] for each in strand]


class Strand(Entries):
    """Triggers of one ordering key in one column, in the order of the key. The first has an entry
    in a cell of the column, unless the strand waits for its ordering key."""

    __slots__ = ("column", "head", "ordering_key", "taken")

    def __init__(self, first: Entry, ordering_key: OrderingKey, column: Column) -> None:
        super().__init__(first)
        self.ordering_key = ordering_key
        self.column = column
        self.head: Entry | None = None
        """Entry of the first trigger in a cell; None while the strand waits for its key. Other
        entries of the strand that are still in cells are stale."""
        self.taken = 0
        """Number of triggers taken since the last call of `TriggerTable.held_back`."""


class Parked:
    """Columns that wait for a limit, in lines by (the limit, the limit that stopped them before).
    When two limits are full alternately, a whole line moves at once."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Hashable, Hashable], list[Order]] = {}
        self._heads: dict[Hashable, list[tuple[Order, int, tuple[Hashable, Hashable]]]] = {}
        """Heap of the heads of a limit's lines, by limit; heads that have left are skipped."""
        self._ties = count()

    def park(self, column: Column, limit: Hashable) -> None:
        """Add the column to those that wait for the limit."""
        if column.line[0] != limit:
            column.line = (limit, column.line[0])
        line = self._lines.setdefault(column.line, [])
        assert column.heads.first is not None
        position = column.position = (*column.heads.first[:4], column)
        heappush(line, position)
        self._show_head(column.line, line)

    def release(self, limit: Hashable) -> Column | None:
        """Remove and return the first column, in the order of the table, that waits for the limit;
        None if there is none."""
        heads = self._heads.get(limit, [])
        while heads:
            position, _, name = heappop(heads)
            line = self._lines.get(name)
            if line is None or line[0] is not position:
                continue
            heappop(line)
            if line:
                self._show_head(name, line)
            else:
                del self._lines[name]
            column: Column = position[4]
            if column.position is position:
                column.line = name
                return column
        self._heads.pop(limit, None)
        return None

    def cross_over(self, limit: Hashable, other: Hashable) -> None:
        """Move the line of columns that wait for `limit` and were stopped by `other` before: they
        now wait for `other`, which is full again."""
        here = self._lines.pop((limit, other), None)
        if here:
            there = self._lines.get((other, limit), [])
            small, large = sorted((here, there), key=len)
            for position in small:
                heappush(large, position)
            self._lines[other, limit] = large
            self._show_head((other, limit), large)

    def _show_head(self, name: tuple[Hashable, Hashable], line: list[Order]) -> None:
        heappush(self._heads.setdefault(name[0], []), (line[0], next(self._ties), name))
