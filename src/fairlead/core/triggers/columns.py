"""Columns of triggers that the same limits stop, and the lines in which columns wait for those
limits."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from operator import itemgetter

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import stride
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.model import Trigger

_MOST_TAKEN = 500
"""Maximum number of taken entries that stay in the list of a column."""

_FEW = 20
"""Ratio of old to new entries above which new ones are inserted one by one instead of sorted."""

Order = tuple[int, int, int]
"""(rank, id of the level or 0, number of the push): unique in a table."""

MOST_KEYS = 50_000
"""Keys of a lane whose next ranks are exact."""

BY_FLOW = -1
"""Rank of a trigger that gets one only when it becomes the first of its flow."""

Entry = tuple[int, int | str, int, Order, Trigger]
"""(three values that sort it within its column or flow, its order in the table, the trigger); flat,
because entries are compared often."""

FairLanes = Mapping[tuple[str, int, int], "FairLane"]
"""Fair lanes by queue, partition and priority."""


class FairLane:
    """Ranks of one fair lane, by start-time fair queueing (Goyal, Vin and Cheng 1996).

    A key gets the rank of its next task when that task becomes the first of its flow: one stride
    after the key's last rank, but never below the virtual time. So tasks that a limit holds back
    cost their key nothing, and a key that a limit held back starts again at the virtual time.
    """

    __slots__ = ("_counters", "_virtual_time", "_weights", "base", "size")

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights`: weights set at run time, by key; the mapping may change at any time."""
        self._weights = weights
        self._counters = Counters(MOST_KEYS)
        self._virtual_time = 0
        self.base = 0
        """Offset of ranks from virtual time, which aligns the lanes of a node."""
        self.size = 0
        """Number of triggers in the table."""

    def align(self, served: int) -> None:
        """Start an idle lane at the highest rank served on the node."""
        if not self.size:
            self.base = max(self.base, served - self._virtual_time)

    def next_rank(self, trigger: Trigger) -> int:
        """Return the rank of the trigger, which is the next of its key."""
        counters, key = self._counters, trigger.fairness_key
        start = max(counters.next_pass(key), self._virtual_time)
        counters.put(key, start + self._stride(trigger), self._virtual_time)
        return self.base + start

    def ran(self, trigger: Trigger, rank: int) -> None:
        """Record that a trigger of this rank runs."""
        start = rank - self.base
        if start >= self._virtual_time:
            self._virtual_time = start
            return
        # A limit held the trigger back meanwhile, so it runs at the virtual time.
        end = self._virtual_time + self._stride(trigger)
        if end > self._counters.next_pass(trigger.fairness_key):
            self._counters.put(trigger.fairness_key, end, self._virtual_time)

    def left(self, trigger: Trigger, rank: int) -> None:
        """Record that a trigger of this rank left without a run: give the rank back, unless its key
        has a later one."""
        start, key = rank - self.base, trigger.fairness_key
        if self._counters.next_pass(key) == start + self._stride(trigger):
            self._counters.put(key, start, self._virtual_time)

    def _stride(self, trigger: Trigger) -> int:
        return stride(self._weights.get(trigger.fairness_key, trigger.weight))


class Entries:
    """Entries of a column, least first. New entries that fall in between are sorted in only when
    needed: entries arrive in ascending runs, for which that costs less than a heap."""

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

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers for which `is_kept` is false."""
        removed = [entry[4] for entry in self if not is_kept(entry[4])]
        if removed:
            self.replace([entry for entry in self if is_kept(entry[4])])
        return removed

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


class FairEntries:
    """Entries of a column with triggers of fair lanes: a flow for each lane and fairness key, which
    gets a rank when its first trigger becomes the first. Each entry with a rank of its own is a
    flow, and all entries of an ordering key are one flow."""

    __slots__ = ("_flows", "_heads", "_is_one_flow", "_lanes", "_size", "first")

    first: Entry
    """The least entry, at its rank. Read it only if there is one."""

    def __init__(self, lanes: FairLanes, is_one_flow: bool, entries: Iterable[Entry]) -> None:
        self._lanes = lanes
        self._is_one_flow = is_one_flow
        self._flows: dict[Hashable, Entry | Entries] = {}
        """Entries by flow; a single entry as it is, because most of many flows have only one."""
        self._heads: list[tuple[Order, Hashable]] = []
        """Heap of (order, flow)."""
        self._size = 0
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in any order."""
        for flow in self._flows.values():
            if isinstance(flow, Entries):
                yield from flow
            else:
                yield flow

    def add(self, entry: Entry) -> bool:
        """Add an entry; return True if the column now comes earlier."""
        flows, heads, name = self._flows, self._heads, self._flow_of(entry)
        self._size += 1
        flow = flows.get(name)
        if flow is None:
            flows[name] = entry
            heappush(heads, (self._order(entry), name))
            if heads[0][1] is name:
                self._find_first()
                return True
            return False
        if not isinstance(flow, Entries):
            single, flow = flow, Entries()
            flow.add(single)
            flows[name] = flow
        if flow.add(entry) and heads[0][1] == name:
            self._find_first()
        return False

    def pop(self) -> None:
        """Remove the first entry, which runs."""
        order, name = self._heads[0]
        flow = self._flows[name]
        entry = flow.first if isinstance(flow, Entries) else flow
        self._size -= 1
        if entry[3][0] == BY_FLOW:
            self._lane_of(entry).ran(entry[4], order[0])
        if isinstance(flow, Entries) and len(flow) > 1:
            flow.pop()
            heapreplace(self._heads, (self._order(flow.first), name))
        else:
            heappop(self._heads)
            del self._flows[name]
        if self._size:
            self._find_first()

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers for which `is_kept` is false. A flow keeps its rank until
        it is empty."""
        removed: list[Trigger] = []
        heads = []
        for order, name in sorted(self._heads, key=itemgetter(0), reverse=True):
            # The last rank of a key leaves first, so that all its ranks can be given back.
            flow = self._flows[name]
            entries = list(flow) if isinstance(flow, Entries) else [flow]
            kept = [entry for entry in entries if is_kept(entry[4])]
            if len(kept) < len(entries):
                removed += [entry[4] for entry in entries if not is_kept(entry[4])]
                del self._flows[name]
                if not kept:
                    if entries[0][3][0] == BY_FLOW:
                        self._lane_of(entries[0]).left(entries[0][4], order[0])
                    continue
                flow = self._flows[name] = Entries()
                flow.replace(kept)
            heads.append((order, name))
        heapify(heads)
        self._heads = heads
        self._size -= len(removed)
        if self._size:
            self._find_first()
        return removed

    def _flow_of(self, entry: Entry) -> Hashable:
        if self._is_one_flow:
            return None
        if entry[3][0] != BY_FLOW:
            return entry[3]
        return entry[4].partition, entry[4].fairness_key

    def _order(self, entry: Entry) -> Order:
        rank, number, push = entry[3]
        if rank == BY_FLOW:
            rank = self._lane_of(entry).next_rank(entry[4])
        return rank, number, push

    def _lane_of(self, entry: Entry) -> FairLane:
        trigger = entry[4]
        return self._lanes[trigger.queue, trigger.partition, trigger.priority]

    def _find_first(self) -> None:
        order, name = self._heads[0]
        flow = self._flows[name]
        entry = flow.first if isinstance(flow, Entries) else flow
        self.first = (entry[0], entry[1], entry[2], order, entry[4])


class Column:
    """Triggers that the same limits stop, in order: by arrival, by the ranks of their fairness keys,
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
        """Position among the ready or parked columns. An older position found there is stale."""
        self.is_held = False
        """Whether a limit stopped the column, or one it waits behind, when it was last tried."""
        self.line: tuple[Hashable, Hashable] = (None, None)
        """Limit that stopped the column last, and the different limit that stopped it before."""
        self.released_by: Hashable = None
        """Limit that released the column, until the column is tried."""
        self.taken = 0
        """Triggers taken since the last `held_back`."""
        self.behind: list[Column] = []
        """Columns of the same key at lower priorities, which are not tried while this one is
        parked."""

    def __lt__(self, other: Column) -> bool:
        """Return False: empty columns may share a position, and their order does not matter."""
        return False

    def add(self, order: Order, trigger: Trigger, lanes: FairLanes) -> bool:
        """Add a trigger; return True if the column now comes earlier. `lanes`: give ranks to the
        triggers whose order begins with BY_FLOW."""
        if order[0] == BY_FLOW and isinstance(self.entries, Entries):
            self.entries = FairEntries(lanes, self.ordering_key is not None, self.entries)
        if self.ordering_key is not None:
            return self.entries.add((trigger.order_at, trigger.id, order[2], order, trigger))
        if order[0] != BY_FLOW or trigger.level is None:
            return self.entries.add((*order, order, trigger))
        return self.entries.add((*trigger.level, order[2], order, trigger))

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
        """Make the columns that wait for `limit` and were stopped by `other` before, which is full
        now, wait for `other`."""
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
