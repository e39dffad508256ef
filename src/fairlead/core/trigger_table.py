"""The sorted trigger table: the next runnable trigger in O(log n), whatever else is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from heapq import heappop, heappush

from fairlead.core.booking import Booking, PolicyFailed
from fairlead.model import PartitionKey, Trigger

_Entry = tuple[int, Trigger]


class _Column:
    """Triggers that the same limits stop, in order of arrival. In the heap of its priority while it may run."""

    __slots__ = ("entries", "key", "parked_on", "priority", "released_by")

    def __init__(self, priority: int, key: Hashable) -> None:
        self.priority = priority
        self.key = key
        self.entries: deque[_Entry] = deque()
        self.parked_on: Hashable = None
        self.released_by: Hashable = None


class TriggerTable:
    """One table for each priority; in it a column for each kind of trigger, ordered by the sequence number at its head.

    A column whose head cannot be booked is parked on the limit that stopped it: it costs nothing until that limit frees
    a slot. A column parked at one priority is not tried at a lower one. A slot that was freed brings back one column,
    the best placed; whatever becomes of that one, unless the limit stops it again, brings back the next: so a freed slot
    costs O(log n) however many columns wait for it, and none is forgotten.
    """

    def __init__(self, booking: Booking) -> None:
        self._booking = booking
        self._columns: dict[tuple[int, Hashable], _Column] = {}
        self._heaps: dict[int, list[tuple[int, int, _Column]]] = {}
        self._parked: dict[Hashable, list[tuple[int, int, int, _Column]]] = {}
        """By limit, a heap of what waits for it: (priority, sequence number at the head, tie, column)."""
        self._full: dict[Hashable, tuple[int, Hashable]] = {}
        """Column key -> (priority, limit) of the best-placed column of that key that is parked."""
        self._alarms: list[tuple[float, int, Hashable]] = []
        self._sequence = 0
        self._tie = 0
        self._size = 0
        self._paused: dict[str, list[_Column]] = {}

    def __len__(self) -> int:
        return self._size

    def sizes(self) -> dict[int, int]:
        """Triggers by priority."""
        sizes: dict[int, int] = {}
        for (priority, _), column in self._columns.items():
            sizes[priority] = sizes.get(priority, 0) + len(column.entries)
        return sizes

    def push(self, trigger: Trigger) -> None:
        """Add a trigger behind all that came before it."""
        key = (trigger.priority, self._booking.column(trigger))
        column = self._columns.get(key)
        self._sequence += 1
        self._size += 1
        if column is None:
            column = self._columns[key] = _Column(*key)
            column.entries.append((self._sequence, trigger))
            self._offer(column)
        else:
            column.entries.append((self._sequence, trigger))

    def take(self, limit: int, now: float) -> tuple[list[Trigger], list[PolicyFailed]]:
        """At most `limit` triggers, booked, by priority and then by arrival; and those whose policy raised, which hold a
        slot of the node and nothing else. `now`: monotonic seconds."""
        self._ring(now)
        taken: list[Trigger] = []
        failed: list[PolicyFailed] = []
        limit = min(limit, self._booking.room)
        for priority in sorted(self._heaps):
            heap = self._heaps[priority]
            while heap and len(taken) + len(failed) < limit:
                self._take_from(heappop(heap)[2], heap, limit, now, taken, failed)
        self._size -= len(taken) + len(failed)
        return taken, failed

    def freed(self, limits: Iterable[Hashable]) -> None:
        """These limits have a slot again: the first that waits for each may be tried."""
        for limit in limits:
            waiting = self._parked.get(limit)
            if waiting:
                column = heappop(waiting)[3]
                if not waiting:
                    del self._parked[limit]
                column.parked_on = None
                column.released_by = limit
                if (standing := self._full.get(column.key)) is not None and standing[0] == column.priority:
                    del self._full[column.key]
                self._offer(column)

    def next_retry(self) -> float | None:
        """When a parked column may be tried again though nothing was freed (monotonic seconds)."""
        return self._alarms[0][0] if self._alarms else None

    def drop(self, partitions: Collection[PartitionKey]) -> list[Trigger]:
        """Take out every trigger of these partitions; nothing is booked for them."""
        gone = set(partitions)
        queues = {queue for queue, _ in gone}
        dropped: list[Trigger] = []
        for column in list(self._columns.values()):
            if column.entries and column.entries[0][1].queue in queues:
                kept = deque(entry for entry in column.entries if (entry[1].queue, entry[1].partition) not in gone)
                dropped += [e[1] for e in column.entries if (e[1].queue, e[1].partition) in gone]
                column.entries = kept
        self._size -= len(dropped)
        self._rebuild()
        return dropped

    def pause(self, queue: str) -> None:
        """Give out no trigger of this queue until `resume`."""
        self._paused.setdefault(queue, [])

    def resume(self, queue: str) -> None:
        """Give them out again, where they stood."""
        for column in self._paused.pop(queue, ()):
            self._offer(column)

    def _take_from(
        self,
        column: _Column,
        heap: list[tuple[int, int, _Column]],
        limit: int,
        now: float,
        taken: list[Trigger],
        failed: list[PolicyFailed],
    ) -> None:
        """Take from one column for as long as its head is the first of its priority."""
        entries = column.entries
        if (paused := self._paused.get(entries[0][1].queue)) is not None:
            paused.append(column)
            self._pass_on(column)
            return
        if (full := self._full.get(column.key)) is not None and full[0] < column.priority:
            self._park(column, full[1])
            return
        book = self._booking.book
        while entries:
            sequence, trigger = entries[0]
            if len(taken) + len(failed) >= limit or (heap and sequence > heap[0][0]):
                self._offer(column)
                return
            try:
                stop = book(trigger, now)
            except PolicyFailed as failure:
                self._booking.book_nothing()
                failed.append(failure)
                entries.popleft()
                continue
            if stop is not None:
                self._park(column, stop.limit)
                if stop.retry_at is not None:
                    self._tie += 1
                    heappush(self._alarms, (stop.retry_at, self._tie, stop.limit))
                return
            entries.popleft()
            taken.append(trigger)
            if column.released_by is not None:
                self._pass_on(column)
        del self._columns[column.priority, column.key]
        self._pass_on(column)

    def _pass_on(self, column: _Column) -> None:
        """The limit that brought this column back did not stop it: the next one waiting for that limit may be tried."""
        limit, column.released_by = column.released_by, None
        if limit is not None:
            self.freed((limit,))

    def _offer(self, column: _Column) -> None:
        self._tie += 1
        heappush(self._heaps.setdefault(column.priority, []), (column.entries[0][0], self._tie, column))

    def _park(self, column: _Column, limit: Hashable) -> None:
        column.parked_on = limit
        self._tie += 1
        heappush(self._parked.setdefault(limit, []), (column.priority, column.entries[0][0], self._tie, column))
        standing = self._full.get(column.key)
        if standing is None or column.priority < standing[0]:
            self._full[column.key] = (column.priority, limit)
        if column.released_by == limit:
            column.released_by = None
        else:
            self._pass_on(column)

    def _ring(self, now: float) -> None:
        while self._alarms and self._alarms[0][0] <= now:
            self.freed((heappop(self._alarms)[2],))

    def _rebuild(self) -> None:
        """After a drop, heads have changed: every column is tried anew, which is harmless and rare."""
        self._heaps.clear()
        self._parked.clear()
        self._full.clear()
        for columns in self._paused.values():
            columns.clear()
        for key, column in list(self._columns.items()):
            column.parked_on = column.released_by = None
            if column.entries:
                self._offer(column)
            else:
                del self._columns[key]
