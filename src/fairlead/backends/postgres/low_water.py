"""Low-water marks of tables: positions, keys and times below which a search finds nothing.

While any transaction is open, PostgreSQL keeps the index entries of deleted rows, and a scan passes
each of them. So a read of a lane, the check of an ordering key by a claim, and a search for due
tasks begin at a low-water mark: the number of rows that ran before does not matter.

A row can appear at a low position as long as a transaction that has drawn this position has not
ended. Each such transaction holds a lock on the table from before it draws a position, until it
ends. So a position is settled once all transactions that held a lock after it was drawn have ended.
A backup holds no such lock.

A task may come to any place of its ordering key and with any due time, because its `run_at` is free
and its transaction may commit late. So a mark of these also has a position, for example 900: of the
tasks up to position 900, none is due before noon. A search begins at noon, and then checks the
tasks above position 900, of which there are few.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fairlead.model import LaneKey, PartitionKey
from fairlead.ports.statements import Statement, Steps

Key = TypeVar("Key", bound=tuple[str | int, ...])

MOST_LANES = 2000
"""Lanes without rows whose marks are kept, because each search looks into these lanes."""
_MOST_SNAPSHOTS = 100
_MOST_KEYS = 10_000
_FIRST, _LAST = -(2**63), 2**63 - 1


class Snapshot(NamedTuple):
    """The highest position drawn at an instant, and the transactions that held a lock then."""

    position: int
    server: int
    """Instant at which the server started, in microseconds since the epoch."""
    holders: frozenset[str]


class Settled(NamedTuple):
    """The settled position: a read that begins now sees all rows up to it."""

    position: int
    server: int
    """Instant at which the server started, in microseconds since the epoch. Another server may have
    other rows, so the statements use a mark only on its own server."""


class LowWaterMarks(Generic[Key]):
    """Low-water marks of the lanes that were read or that searches have found. The task log has
    them by partition."""

    def __init__(self) -> None:
        self._marks: dict[Key, int] = {}
        self._snapshots: list[Snapshot] = []
        """Snapshots whose positions are not settled yet, and the latest one."""
        self.settled = Settled(0, 0)

    def of(self, lane: Key) -> int:
        """Return the mark of a lane, which is 0 at first and raised by later searches."""
        return self._marks.setdefault(lane, 0)

    def rows(self) -> list[tuple[str | int, ...]]:
        """Return the key and the mark of each lane with a mark."""
        return [(*lane, mark) for lane, mark in self._marks.items() if mark]

    def raise_to(
        self, first: Mapping[Key, int], settled: Settled, searched: Iterable[Key] | None = None
    ) -> None:
        """Raise the marks after a search, which returned the position of the first row of each
        lane that has rows. `settled`: the attribute at the beginning of the search. `searched`: the
        lanes that it searched; None: all."""
        if settled.server != self.settled.server:
            return
        if len(self._marks) > MOST_LANES + len(first):
            self._marks = {lane: mark for lane, mark in self._marks.items() if lane in first}
        if searched is None:
            searched = self._marks.keys() | first.keys()
        for lane in searched:
            mark = min(first.get(lane, settled.position + 1) - 1, settled.position)
            self._marks[lane] = max(self.of(lane), mark)

    def add(self, snapshot: Snapshot) -> None:
        """Note a snapshot, which was read after the one before it. Drop all marks if the server has
        restarted, because another server may have lost positions."""
        last = self._snapshots[-1] if self._snapshots else None
        if last and (snapshot.server != last.server or snapshot.position < last.position):
            self._marks, self._snapshots, self.settled = {}, [], Settled(0, 0)
        self._snapshots.append(snapshot)
        settled = self.settled.position
        while len(self._snapshots) > 1 and self._is_settled(snapshot.holders):
            settled = self._snapshots.pop(0).position
        self.settled = Settled(settled, snapshot.server)
        if len(self._snapshots) > _MOST_SNAPSHOTS:
            del self._snapshots[1:-1:2]

    def _is_settled(self, holders: Collection[str]) -> bool:
        """Return whether the position of the first snapshot is settled. Transactions that may have
        drawn it hold a lock at the next snapshot."""
        return self._snapshots[1].holders.isdisjoint(holders)


PartitionMarks = LowWaterMarks[PartitionKey]


class KeyMark(NamedTuple):
    """Low-water mark of an ordering key: no task with `order_seq` up to this one is before this
    place."""

    order_at: int
    id: str
    order_seq: int


_LOWEST = KeyMark(_FIRST, "00000000-0000-0000-0000-000000000000", _LAST)


class DueMark(NamedTuple):
    """Low-water mark of due times: no task with `due_seq` up to this one is due earlier. Parameters
    of the statement `due_mark`."""

    due_at: int
    due_seq: int
    server: int


class TaskMarks(LowWaterMarks[LaneKey]):
    """Low-water marks of the tasks of a database: of lanes, ordering keys and due times."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: OrderedDict[tuple[str, str], KeyMark] = OrderedDict()
        """Marks of the ordering keys that were claimed or read last, on the present server."""
        self.due = DueMark(_FIRST, _LAST, 0)
        """Mark of the due times, the lowest one at first."""

    def add(self, snapshot: Snapshot) -> None:
        if snapshot.server != self.settled.server:
            self._keys = OrderedDict()  # a new one: another thread may add to the earlier one
        super().add(snapshot)

    def of_key(self, queue: str, ordering_key: str | None) -> KeyMark:
        """Return the mark of an ordering key, the lowest one if none is known."""
        return self._keys.get((queue, ordering_key or ""), _LOWEST)

    def raise_key(self, key: tuple[str, str], order_at: int, id: str, settled: Settled) -> None:
        """Raise the mark of (queue, ordering key), whose first task was found by a statement that
        began when `settled` was."""
        keys = self._keys
        if settled.server != self.settled.server:
            return
        keys[key] = KeyMark(order_at, id, settled.position)
        keys.move_to_end(key)
        if len(keys) > _MOST_KEYS:
            keys.popitem(last=False)

    def raise_due(self, due_at: int | None, settled: Settled) -> None:
        """Move the mark to the earliest due time, None without one, which was found by a statement
        that began when `settled` was."""
        if settled.position:
            self.due = DueMark(_LAST if due_at is None else due_at, *settled)


class SnapshotReader:
    """Reads the snapshots of one table. Safe to use from several threads."""

    def __init__(self, marks: LowWaterMarks[Any], statement: Statement, seconds: float) -> None:
        """`statement`: returns a snapshot's position, server and holders. `seconds`: shortest time
        between two snapshots of `read_if_late`."""
        self._marks = marks
        self._statement = statement
        self._seconds = seconds
        self._reading = threading.Lock()
        self.late_at = 0.0
        """Monotonic seconds from which another snapshot is to be read."""

    @property
    def is_late(self) -> bool:
        """Whether another snapshot is to be read."""
        return time.monotonic() >= self.late_at

    def read(self) -> Steps[None]:
        """Read a snapshot, unless another thread reads one."""
        if self._reading.acquire(blocking=False):
            try:
                position, server, holders = (yield self._statement)[0]
                self._marks.add(Snapshot(position, server, frozenset(holders)))
                self.late_at = time.monotonic() + self._seconds
            finally:
                self._reading.release()

    def read_if_late(self) -> Steps[None]:
        """Read a snapshot if the last one is old."""
        if self.is_late:
            yield from self.read()
