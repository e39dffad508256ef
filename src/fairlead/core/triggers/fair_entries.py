"""Entries of a column with triggers of fair lanes: the ranks of start-time fair queueing (Goyal,
Vin and Cheng 1996), given when a trigger becomes the next of its key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import stride
from fairlead.core.triggers.entries import Entries, Entry
from fairlead.model import Trigger

MOST_KEYS = 50_000
"""Keys of a lane whose next ranks are exact."""


_Head = tuple[int, int, int, Hashable]
"""(rank, id of a level, number of a push, flow): the order of a flow."""


class VirtualTime:
    """Virtual time of one priority: the highest rank taken. All its lanes share it."""

    __slots__ = ("next_fifo", "now")

    def __init__(self) -> None:
        self.now = 0
        self.next_fifo = 0
        """Rank of the next fifo trigger."""

    def fifo_rank(self, step: int) -> int:
        """Return the rank of one more trigger of fifo queues, `step` before the next."""
        rank = max(self.now, self.next_fifo)
        self.next_fifo = rank + step
        return rank

    def reach(self, rank: int) -> None:
        """Record that a trigger of this rank runs."""
        if rank > self.now:
            self.now = rank


class FairLane:
    """Next ranks of the fairness keys of one fair lane.

    A key gets the rank of its next task when that task becomes the first of its flow: one stride
    after the key's last rank, but never below the virtual time. So tasks that a limit holds back
    cost their key nothing, and a key that a limit held back starts again at the virtual time.
    """

    __slots__ = ("_next", "_time", "_weights")

    def __init__(self, time: VirtualTime, weights: Mapping[str, float]) -> None:
        """`weights`: weights set at run time, by key; the mapping may change at any time."""
        self._time = time
        self._weights = weights
        self._next = Counters(MOST_KEYS)

    def rank(self, trigger: Trigger) -> int:
        """Return the rank of the trigger, which is the next of its key."""
        key, now = trigger.fairness_key, self._time.now
        rank = self._next.next_pass(key)
        if rank < now:
            rank = now
        step = stride(self._weights.get(key, trigger.weight))
        self._next.put(key, rank + step, now)
        return rank

    def ran(self, trigger: Trigger, rank: int) -> None:
        """Record that a trigger of this rank runs."""
        now = self._time.now
        if rank >= now:
            self._time.now = rank
            return
        # A limit held the trigger back meanwhile, so it runs at the virtual time.
        key = trigger.fairness_key
        end = now + stride(self._weights.get(key, trigger.weight))
        if end > self._next.next_pass(key):
            self._next.put(key, end, now)

    def left(self, trigger: Trigger) -> None:
        """Record that a trigger with a rank left without a run: the key's next rank comes a stride
        earlier."""
        key = trigger.fairness_key
        step = stride(self._weights.get(key, trigger.weight))
        now = self._time.now
        self._next.put(key, max(now, self._next.next_pass(key) - step), now)

    def follow(self, trigger: Trigger, rank: int, following: Trigger) -> int:
        """Record that a trigger of this rank runs; return the rank of the following one of the same
        key."""
        time, counters, key, weights = self._time, self._next, trigger.fairness_key, self._weights
        now = least = time.now
        if rank >= now:
            time.now = now = least = rank
        else:
            least += stride(weights.get(key, trigger.weight))  # as in `ran`
        start = counters.next_pass(key)
        if start < least:
            start = least
        counters.put(key, start + stride(weights.get(key, following.weight)), now)
        return start


class FairEntries:
    """Entries of a column with triggers of fair lanes: a flow for each lane and fairness key, which
    gets a rank when its first trigger becomes the first. Each entry with an order of its own is a
    flow, and all entries of an ordering key are one flow."""

    __slots__ = (
        "_entry",
        "_flow",
        "_flows",
        "_heads",
        "_is_one_flow",
        "_lane",
        "_size",
        "first",
    )

    first: Entry
    """The least entry, with its order. Read it only if there is one."""
    _entry: Entry
    """The least entry, as it was added."""
    _flow: _Flow
    """Flow of the least entry."""

    def __init__(self, is_one_flow: bool, entries: Iterable[Entry]) -> None:
        self._is_one_flow = is_one_flow
        self._flows: dict[Hashable, _Flow] = {}
        self._heads: list[_Head] = []
        """Heap of the orders of the flows."""
        self._lane: FairLane | None = None
        """Lane whose flows are named by their keys alone: most columns have only one lane."""
        self._size = 0
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in any order."""
        for flow in self._flows.values():
            yield from _entries(flow)

    def add(self, entry: Entry) -> bool:
        """Add an entry; return True if the column now comes earlier."""
        name = self._name(entry)
        flow = self._flows.get(name)
        self._size += 1
        if flow is None:
            self._flows[name] = entry
            head = _head(entry, name)
            heappush(self._heads, head)
            if self._heads[0] is not head:
                return False
            self._find_first()
            return True
        if isinstance(flow, tuple):
            single, flow = flow, Entries(flow)
            self._flows[name] = flow
            if self._flow is single:
                self._flow = flow
        if flow.add(entry) and self._flow is flow:
            if self._is_one_flow:
                return self._lead(entry)
            self._show(entry)
        return False

    def pop(self) -> None:
        """Remove the first entry, which runs."""
        heads, flow = self._heads, self._flow
        rank, _, _, name = heads[0]
        _, _, _, lane, trigger = self._entry
        entry = None if isinstance(flow, tuple) else flow.pop()
        self._size -= 1
        if entry is None or self._is_one_flow:
            if isinstance(lane, FairLane):
                lane.ran(trigger, rank)
            if entry is not None:
                heads[0] = _head(entry, name)
                self._show(entry)
                return
            heappop(heads)
            del self._flows[name]
            if heads:
                self._find_first()
            return
        head: _Head = (lane.follow(trigger, rank, entry[4]), entry[1], entry[2], name)
        heapreplace(heads, head)
        if heads[0] is head:
            self._show(entry)
        else:
            self._find_first()

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers for which `is_kept` is false. A flow keeps its rank until
        it is empty."""
        removed: list[Trigger] = []
        heads: list[_Head] = []
        for head in self._heads:
            name = head[3]
            flow = self._flows[name]
            before = flow if isinstance(flow, tuple) else flow.first
            leaving = [entry for entry in _entries(flow) if not is_kept(entry[4])]
            if not leaving:
                heads.append(head)
                continue
            removed += [entry[4] for entry in leaving]
            kept = [entry for entry in _entries(flow) if is_kept(entry[4])]
            is_led_by_another = self._is_one_flow and not is_kept(before[4])
            if (not kept or is_led_by_another) and isinstance(before[3], FairLane):
                before[3].left(before[4])
            if not kept:
                del self._flows[name]
                continue
            flow = self._flows[name] = Entries()
            flow.replace(kept)
            heads.append(_head(flow.first, name) if is_led_by_another else head)
        heapify(heads)
        self._heads = heads
        self._size -= len(removed)
        if heads:
            self._find_first()
        return removed

    def _name(self, entry: Entry) -> Hashable:
        """Return the name of the flow of an entry."""
        if self._is_one_flow:
            return None
        lane, trigger = entry[3], entry[4]
        if lane is self._lane:
            return trigger.fairness_key
        if not isinstance(lane, FairLane):
            return entry[:3]
        if self._lane is None:
            self._lane = lane
            return trigger.fairness_key
        return lane, trigger.fairness_key

    def _lead(self, entry: Entry) -> bool:
        """Let an entry lead the only flow; return True if the column now comes earlier."""
        before, old = self._entry, self._heads[0]
        if isinstance(before[3], FairLane):
            before[3].left(before[4])
        self._heads[0] = _head(entry, None)
        self._show(entry)
        return self._heads[0] < old

    def _find_first(self) -> None:
        """Show the first entry of the first flow."""
        self._flow = flow = self._flows[self._heads[0][3]]
        self._show(flow if isinstance(flow, tuple) else flow.first)

    def _show(self, entry: Entry) -> None:
        self._entry = entry
        self.first = (entry[0], entry[1], entry[2], self._heads[0], entry[4])


_Flow = Entry | Entries
"""Entries of a flow; a single entry as it is, because most of many flows have only one."""


def _entries(flow: _Flow) -> Iterable[Entry]:
    return (flow,) if isinstance(flow, tuple) else flow


def _head(entry: Entry, name: Hashable) -> _Head:
    """Return the order of a flow that begins with the entry."""
    order, trigger = entry[3], entry[4]
    if isinstance(order, FairLane):
        assert trigger.level is not None
        return order.rank(trigger), trigger.level.id, entry[2], name
    return order[0], order[1], order[2], name
