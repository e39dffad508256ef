"""The sorted trigger table: the next runnable trigger in O(log n), whatever else is full."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable
from heapq import heapify, heappop, heappush

from fairlead.core.booking import Booking, PolicyFailed
from fairlead.model import PartitionKey, Trigger


class _Column:
    """Triggers that the same limits stop, in order of arrival: (sequence number, trigger)."""

    __slots__ = ("behind", "entries", "key", "line", "priority", "released_by")

    def __init__(self, priority: int, key: Hashable) -> None:
        self.priority = priority
        self.key = key
        self.entries: deque[tuple[int, Trigger]] = deque()
        self.line: tuple[Hashable, Hashable] = (None, None)
        """The limit that stopped it last, and a different one that did before."""
        self.released_by: Hashable = None
        """The limit that brought it back and has not been answered yet."""
        self.behind: list[_Column] = []
        """While it is parked: columns of the same key at lower priorities, which need not be tried either."""


_Place = tuple[int, int, _Column]
"""(priority, sequence number at the head, column): no two columns share the first two."""


class _Parked:
    """Columns that wait for a limit. They stand in lines, one for each pair (the limit, the one that stopped them
    before): when two limits are full by turns, a whole line changes sides at once."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Hashable, Hashable], list[_Place]] = {}
        self._heads: dict[Hashable, list[tuple[int, int, int, tuple[Hashable, Hashable]]]] = {}
        """By limit, a heap of the heads of its lines; a head that has left is skipped when it is met."""
        self._tie = 0

    def park(self, column: _Column, limit: Hashable) -> None:
        """Let the column wait for the limit."""
        if column.line[0] != limit:
            column.line = (limit, column.line[0])
        line = self._lines.setdefault(column.line, [])
        heappush(line, (column.priority, column.entries[0][0], column))
        self._show_head(column.line, line)

    def release(self, limit: Hashable) -> _Column | None:
        """The best-placed column that waits for the limit waits no longer."""
        heads = self._heads.get(limit, [])
        while heads:
            priority, sequence, _, name = heappop(heads)
            line = self._lines.get(name)
            if line and line[0][:2] == (priority, sequence):
                column = heappop(line)[2]
                column.line = name
                if line:
                    self._show_head(name, line)
                else:
                    del self._lines[name]
                return column
        self._heads.pop(limit, None)
        return None

    def cross_over(self, limit: Hashable, other: Hashable) -> None:
        """Those that wait for `limit` and were stopped by `other` before, which is full now, wait for that one."""
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

    def _show_head(self, name: tuple[Hashable, Hashable], line: list[_Place]) -> None:
        self._tie += 1
        heappush(self._heads.setdefault(name[0], []), (line[0][0], line[0][1], self._tie, name))


class TriggerTable:
    """A column for each priority and kind of trigger, ordered by priority and the sequence number at its head.

    A column whose head cannot be booked is parked on the limit that stopped it: it costs nothing until that limit frees
    a slot. A column parked at one priority is not tried at a lower one. A freed slot brings back one column, the best
    placed; whatever becomes of that one, unless the limit stops it again, brings back the next: so a freed slot costs
    O(log n) however many columns wait for it, and none is forgotten.
    """

    def __init__(self, booking: Booking) -> None:
        self._booking = booking
        self._columns: dict[tuple[int, Hashable], _Column] = {}
        self._ready: list[_Place] = []
        self._parked = _Parked()
        self._full: dict[Hashable, _Column] = {}
        """By column key, the parked column that those of lower priorities wait behind."""
        self._alarms: list[tuple[float, int, Hashable]] = []
        self._alarm_of: dict[Hashable, float] = {}
        """The one alarm that counts for each limit; others in the heap are stale."""
        self._paused: dict[str, list[_Column]] = {}
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._sequence = 0

    def __len__(self) -> int:
        return sum(self._sizes.values())

    def sizes(self) -> dict[int, int]:
        """Triggers by priority."""
        return {priority: size for priority, size in sorted(self._sizes.items()) if size}

    def push(self, trigger: Trigger) -> None:
        """Add a trigger behind all that came before it."""
        priority = trigger.priority
        key = (priority, self._booking.column(trigger))
        self._sequence += 1
        self._sizes[priority] += 1
        column = self._columns.get(key)
        if column is not None:
            column.entries.append((self._sequence, trigger))
        else:
            column = self._columns[key] = _Column(*key)
            column.entries.append((self._sequence, trigger))
            self._offer(column)

    def take(self, limit: int, now: float) -> tuple[list[Trigger], list[PolicyFailed]]:
        """At most `limit` triggers, booked, by priority and then by arrival; and those whose policy raised, for which
        nothing is booked. `now`: monotonic seconds."""
        self._ring(now)
        taken: list[Trigger] = []
        failed: list[PolicyFailed] = []
        limit = min(limit, self._booking.room)
        ready = self._ready
        while ready and (left := limit - len(taken) - len(failed)) > 0:
            column = heappop(ready)[2]
            queue = column.entries[0][1].queue
            standing = self._full.get(column.key)
            if queue in self._paused:
                self._paused[queue].append(column)
                self._pass_on(column)
            elif standing is not None and standing.priority < column.priority:
                standing.behind.append(column)
                self._pass_on(column)
            else:
                before = len(column.entries)
                self._take_from(column, left, now, taken, failed)
                self._sizes[column.priority] -= before - len(column.entries)
        return taken, failed

    def freed(self, limits: Iterable[Hashable]) -> None:
        """These limits have a slot again: the first that waits for each may be tried."""
        for limit in limits:
            column = self._parked.release(limit)
            if column is not None:
                column.released_by = limit
                self._offer(column)
                if self._full.get(column.key) is column:
                    del self._full[column.key]
                for lower in column.behind:
                    self._offer(lower)
                column.behind.clear()

    def next_retry(self) -> float | None:
        """When a parked column may be tried again though nothing was freed (monotonic seconds)."""
        alarms = self._alarms
        while alarms and self._alarm_of.get(alarms[0][2]) != alarms[0][0]:
            heappop(alarms)
        return alarms[0][0] if alarms else None

    def drop(self, partitions: Collection[PartitionKey]) -> list[Trigger]:
        """Take out every trigger of these partitions; nothing is booked for them."""
        gone = set(partitions)
        queues = {queue for queue, _ in gone}
        dropped: list[Trigger] = []
        for column in self._columns.values():
            if column.entries[0][1].queue in queues:
                out = [trigger for _, trigger in column.entries if (trigger.queue, trigger.partition) in gone]
                column.entries = deque(e for e in column.entries if (e[1].queue, e[1].partition) not in gone)
                self._sizes[column.priority] -= len(out)
                dropped += out
        self._start_over()
        return dropped

    def pause(self, queue: str) -> None:
        """Give out no trigger of this queue until `resume`."""
        self._paused.setdefault(queue, [])

    def resume(self, queue: str) -> None:
        """Give them out again, where they stood."""
        for column in self._paused.pop(queue, ()):
            self._offer(column)

    def _take_from(
        self, column: _Column, left: int, now: float, taken: list[Trigger], failed: list[PolicyFailed]
    ) -> None:
        """Take at most `left` from one column, for as long as its head is the first of all."""
        entries, ready, book = column.entries, self._ready, self._booking.book
        while entries:
            sequence, trigger = entries[0]
            if not left or (ready and ready[0] < (column.priority, sequence)):
                self._offer(column)
                return
            try:
                stop = book(trigger, now)
            except PolicyFailed as failure:
                failed.append(failure)
            else:
                if stop is not None:
                    if stop.retry_at is not None:
                        self._set_alarm(stop.limit, stop.retry_at)
                    self._park(column, stop.limit)
                    return
                taken.append(trigger)
            entries.popleft()
            left -= 1
            if column.released_by is not None:
                self._pass_on(column)
        del self._columns[column.priority, column.key]

    def _offer(self, column: _Column) -> None:
        heappush(self._ready, (column.priority, column.entries[0][0], column))

    def _park(self, column: _Column, limit: Hashable) -> None:
        released_by, before = column.released_by, column.line[1]
        self._parked.park(column, limit)
        standing = self._full.get(column.key)
        if standing is None or column.priority < standing.priority:
            self._full[column.key] = column
        if released_by == limit:
            column.released_by = None
        elif released_by is not None:
            if before == limit:
                self._parked.cross_over(released_by, limit)
            self._pass_on(column)

    def _pass_on(self, column: _Column) -> None:
        """The limit that brought this column back did not stop it: the next one waiting for that limit may be tried."""
        limit, column.released_by = column.released_by, None
        if limit is not None:
            self.freed((limit,))

    def _set_alarm(self, limit: Hashable, at: float) -> None:
        if at < self._alarm_of.get(limit, float("inf")):
            self._alarm_of[limit] = at
            self._sequence += 1
            heappush(self._alarms, (at, self._sequence, limit))

    def _ring(self, now: float) -> None:
        while (at := self.next_retry()) is not None and at <= now:
            limit = heappop(self._alarms)[2]
            del self._alarm_of[limit]
            self.freed((limit,))

    def _start_over(self) -> None:
        """Heads have changed: every column is tried anew, which is harmless, and rare."""
        self._parked.clear()
        self._full.clear()
        self._alarms.clear()
        self._alarm_of.clear()
        for paused in self._paused.values():
            paused.clear()
        self._columns = {key: column for key, column in self._columns.items() if column.entries}
        for column in self._columns.values():
            column.released_by = None
            column.behind.clear()
        self._ready = [(c.priority, c.entries[0][0], c) for c in self._columns.values()]
        heapify(self._ready)
