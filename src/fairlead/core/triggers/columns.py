"""Columns of triggers that the same limits stop, and the lines in which columns wait for those
limits."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heappop, heappush

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.model import Trigger

_MOST_TAKEN = 500
"""Maximum number of taken entries that stay in the list of a column."""

_FEW = 20
"""Ratio of old to new entries above which new ones are inserted one by one instead of sorted."""

Order = tuple[int, int, int]
"""Position in a table: (rank, id of the level or 0, number of the trigger in the order of adding).
The number makes each position unique. `TriggerTable` explains ranks."""

Entry = tuple[int, int | str, int, Order, Trigger]
"""(three values that sort it within its column, its order in the table, the trigger); flat, because
entries are compared often."""


class Entries:
    """Entries of a column, least first. A new entry that is neither the first nor the last is
    sorted in only at the next `pop`. Entries arrive in ascending runs, so this costs less than a
    heap."""

    __slots__ = ("_between", "_rows", "_start")

    def __init__(self) -> None:
        self._rows: list[Entry] = []
        """Ascending entries; those before `_start` have been taken."""
        self._start = 0
        self._between: list[Entry] = []
        """Entries above the first, in any order."""

    def __len__(self) -> int:
        return len(self._rows) - self._start + len(self._between)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in any order."""
        yield from self._rows[self._start :]
        yield from self._between

    @property
    def first(self) -> Entry:
        """The least entry. Read it only if there is one."""
        return self._rows[self._start]

    def add(self, entry: Entry) -> bool:
        """Add an entry; return True if it is now the first."""
        rows, start = self._rows, self._start
        if start == len(rows):
            rows.append(entry)
            return True
        if entry < rows[start]:
            if start:
                self._start = start - 1
                rows[start - 1] = entry
            else:
                rows.insert(0, entry)
            return True
        if not self._between and rows[-1] < entry:
            rows.append(entry)
        else:
            self._between.append(entry)
        return False

    def pop(self) -> None:
        """Remove the first entry."""
        self._start += 1
        if self._between or (self._start > _MOST_TAKEN and self._start > len(self._rows) // 4):
            self._tidy()

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        self._rows, self._start, self._between = sorted(entries), 0, []

    def _tidy(self) -> None:
        rows, between = self._rows, self._between
        del rows[: self._start]
        self._start = 0
        if len(between) * _FEW < len(rows):
            for entry in between:
                insort(rows, entry)
        else:
            rows += between
            rows.sort()
        between.clear()


class Column:
    """Triggers that the same limits stop, in order: by arrival, by level, or by the order of their
    ordering key."""

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
        self.entries = Entries()
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
        """Add a trigger; return True if it is now the first."""
        if self.ordering_key is None:
            return self.entries.add((*order, order, trigger))
        return self.entries.add((trigger.order_at, trigger.id, order[2], order, trigger))

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers for which `is_kept` is false."""
        removed = [entry[4] for entry in self.entries if not is_kept(entry[4])]
        if removed:
            self.entries.replace([entry for entry in self.entries if is_kept(entry[4])])
        return removed


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
