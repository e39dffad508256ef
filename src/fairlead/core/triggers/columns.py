"""Columns of triggers that the same limits stop, and the lines in which they wait for those
limits."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heappop, heappush

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.model import Trigger

_MOST_TAKEN = 500
"""Entries taken that may stay in the list of a column."""

_FEW = 20
"""Entries so many times fewer than the others are inserted one by one, rather than sorted in."""

Order = tuple[int, int, int]
"""(rank, id of the level or 0, number of the push): no two triggers of a table share it."""

Entry = tuple[int, int | str, int, Order, Trigger]
"""(three that sort it within its column, its order among all, the trigger); flat, for it is
compared often."""


class Entries:
    """Entries, least first. They come and go in runs, so what falls in between is sorted in when it
    is needed: for a run that costs less than a heap."""

    __slots__ = ("_between", "_rows", "_start")

    def __init__(self) -> None:
        self._rows: list[Entry] = []
        """Ascending; those before `_start` have been taken."""
        self._start = 0
        self._between: list[Entry] = []
        """Each above the first, in any order."""

    def __len__(self) -> int:
        return len(self._rows) - self._start + len(self._between)

    def __iter__(self) -> Iterator[Entry]:
        """In any order."""
        yield from self._rows[self._start :]
        yield from self._between

    @property
    def first(self) -> Entry:
        """There must be one."""
        return self._rows[self._start]

    def add(self, entry: Entry) -> bool:
        """Add one; True if it is the first now."""
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
        """Take the first."""
        self._start += 1
        if self._between or (self._start > _MOST_TAKEN and self._start > len(self._rows) // 4):
            self._tidy()

    def replace(self, entries: Iterable[Entry]) -> None:
        """Have these instead."""
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
    """Triggers that the same limits stop, first to last: by arrival, by level, or in the order of
    their ordering key."""

    __slots__ = (
        "behind",
        "entries",
        "is_held",
        "key",
        "line",
        "ordering_key",
        "place",
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
        self.place: Place | None = None
        """Where it stands among those that are ready or parked; any other place of it that is met
        there is stale."""
        self.is_held = False
        """A limit stopped it, or one that it waits behind, when it was last tried."""
        self.line: tuple[Hashable, Hashable] = (None, None)
        """The limit that stopped it last, and a different one that did before."""
        self.released_by: Hashable = None
        """The limit that brought it back and has not been answered yet."""
        self.taken = 0
        """Since `held_back` was asked."""
        self.behind: list[Column] = []
        """While it is parked: columns of the same key at lower priorities, which need not be tried
        either."""

    def __lt__(self, other: Column) -> bool:
        """Columns that have run empty share a place; which of them is looked at first does not
        matter."""
        return False

    def add(self, order: Order, trigger: Trigger) -> bool:
        """Add a trigger; True if it is the first now."""
        if self.ordering_key is None:
            return self.entries.add((*order, order, trigger))
        return self.entries.add((trigger.order_at, trigger.id, order[2], order, trigger))

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Take out what is not to be kept."""
        out = [entry[4] for entry in self.entries if not is_kept(entry[4])]
        if out:
            self.entries.replace([entry for entry in self.entries if is_kept(entry[4])])
        return out


Place = tuple[int, Order, Column]
"""(priority, order of the head, column): no two columns share the first two, but those that have
run empty."""


class Parked:
    """Columns that wait for a limit. They stand in lines, one for each pair (the limit, the one
    that stopped them before): when two limits are full by turns, a whole line changes sides at
    once."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Hashable, Hashable], list[Place]] = {}
        self._heads: dict[Hashable, list[tuple[int, Order, int, tuple[Hashable, Hashable]]]] = {}
        """By limit, a heap of the heads of its lines; a head that has left is skipped when it is
        met."""
        self._tie = 0

    def park(self, column: Column, limit: Hashable) -> None:
        """Let the column wait for the limit."""
        if column.line[0] != limit:
            column.line = (limit, column.line[0])
        line = self._lines.setdefault(column.line, [])
        column.place = (column.priority, column.entries.first[3], column)
        heappush(line, column.place)
        self._show_head(column.line, line)

    def release(self, limit: Hashable) -> Column | None:
        """The best-placed column that waits for the limit waits no longer."""
        heads = self._heads.get(limit, [])
        while heads:
            priority, order, _, name = heappop(heads)
            line = self._lines.get(name, [])
            if not line or line[0][:2] != (priority, order):
                continue
            place = heappop(line)
            if line:
                self._show_head(name, line)
            else:
                del self._lines[name]
            column = place[2]
            if column.place is place:
                column.line = name
                return column
        self._heads.pop(limit, None)
        return None

    def cross_over(self, limit: Hashable, other: Hashable) -> None:
        """Those that wait for `limit` and were stopped by `other` before, which is full now, wait
        for that one."""
        here = self._lines.pop((limit, other), None)
        if here:
            there = self._lines.get((other, limit), [])
            small, large = sorted((here, there), key=len)
            for place in small:
                heappush(large, place)
            self._lines[other, limit] = large
            self._show_head((other, limit), large)

    def clear(self) -> None:
        """Nothing waits."""
        self._lines.clear()
        self._heads.clear()

    def _show_head(self, name: tuple[Hashable, Hashable], line: list[Place]) -> None:
        self._tie += 1
        heappush(self._heads.setdefault(name[0], []), (line[0][0], line[0][1], self._tie, name))
