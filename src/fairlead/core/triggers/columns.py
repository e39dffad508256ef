"""Columns of triggers that the same limits stop, and the lines in which columns wait for those
limits."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.core.triggers.entries import Entries, Entry, Order
from fairlead.core.triggers.fair_entries import FairEntries, FairLane
from fairlead.model import Trigger


class Column:
    """Triggers that the same limits stop, in order: by arrival, by rank of their fairness keys,
    or by the order of their ordering key."""

    __slots__ = (
        "behind",
        "entries",
        "is_held",
        "key",
        "line",
        "ordering_key",
        "position",
        "priority",
        "released_by",
        "taken",
    )

    def __init__(self, priority: int, key: Hashable, trigger: Trigger) -> None:
        self.priority = priority
        self.key = key
        self.ordering_key = (
            None
            if trigger.ordering_key is None
            else OrderingKey(trigger.queue, trigger.ordering_key)
        )
        self.entries: Entries | FairEntries = Entries()
        self.position: ColumnPosition | None = None
        """Position among the ready or parked columns. Older positions of the column that are still
        among them are stale."""
        self.is_held = False
        """Whether, at the last try, a limit stopped this column or a column it waits behind."""
        self.line: tuple[Hashable, Hashable] = (None, None)
        """Limit that stopped the column last, and the different limit that stopped it before."""
        self.released_by: Hashable = None
        """Limit that released the column, until the column is tried."""
        self.taken = 0
        """Number of triggers taken since the last call of `TriggerTable.held_back`."""
        self.behind: list[Column] = []
        """Columns of the same key at lower priorities, which are not tried while this one is
        parked."""

    def __lt__(self, other: Column) -> bool:
        """Return False: empty columns may share a position, and their order does not matter."""
        return False

    def add(self, order: Order, trigger: Trigger) -> bool:
        """Add a trigger at this order; return True if the column now comes earlier."""
        if self.ordering_key is not None:
            return self.entries.add((trigger.order_at, trigger.id, order[2], order, trigger))
        return self.entries.add((order[0], order[1], order[2], order, trigger))

    def add_fair(self, lane: FairLane, push: int, trigger: Trigger) -> bool:
        """Add a trigger, to which the lane gives a rank; return True if the column now comes
        earlier. `push`: number of the push."""
        if isinstance(self.entries, Entries):
            self.entries = FairEntries(self.ordering_key is not None, self.entries)
        if self.ordering_key is not None:
            return self.entries.add((trigger.order_at, trigger.id, push, lane, trigger))
        assert trigger.level is not None
        pass_, number = trigger.level
        return self.entries.add((pass_, number, push, lane, trigger))

    def add_again(self, entry: Entry) -> None:
        """Add an entry of another column, at its order or in its lane."""
        if isinstance(entry[3], FairLane):
            self.add_fair(entry[3], entry[2], entry[4])
        else:
            self.add(entry[3], entry[4])

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers for which `is_kept` is false."""
        return self.entries.keep(is_kept)


ColumnPosition = tuple[int, Order, Column]
"""(priority, order of the head, column): unique in the first two, except for empty columns."""


class Parked:
    """Columns that wait for a limit, in lines by (the limit, the limit that stopped them before).
    When two limits are full alternately, a whole line moves at once."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Hashable, Hashable], list[ColumnPosition]] = {}
        self._heads: dict[Hashable, list[tuple[int, Order, int, tuple[Hashable, Hashable]]]] = {}
        """Heap of the heads of a limit's lines, by limit; heads that have left are skipped."""
        self._tie = 0

    def park(self, column: Column, limit: Hashable) -> None:
        """Add the column to those that wait for the limit."""
        if column.line[0] != limit:
            column.line = (limit, column.line[0])
        line = self._lines.setdefault(column.line, [])
        column.position = (column.priority, column.entries.first[3], column)
        heappush(line, column.position)
        self._show_head(column.line, line)

    def release(self, limit: Hashable) -> Column | None:
        """Remove and return the first column, in the order of the table, that waits for the limit;
        None if there is none."""
        heads = self._heads.get(limit, [])
        while heads:
            priority, order, _, name = heappop(heads)
            line = self._lines.get(name, [])
            if not line or line[0][:2] != (priority, order):
                continue
            position = heappop(line)
            if line:
                self._show_head(name, line)
            else:
                del self._lines[name]
            column = position[2]
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

    def clear(self) -> None:
        """Drop all waiting columns."""
        self._lines.clear()
        self._heads.clear()

    def _show_head(self, name: tuple[Hashable, Hashable], line: list[ColumnPosition]) -> None:
        self._tie += 1
        heappush(self._heads.setdefault(name[0], []), (line[0][0], line[0][1], self._tie, name))
