"""Floors of lanes: positions at or below which a lane has no row now and gets none later.

While any transaction is open, PostgreSQL keeps the index entries of deleted rows, and a scan passes
each of them. A read of a lane begins at its floor, so that the number of rows that ran before does
not matter.

A row can appear at a low position as long as a transaction that has drawn this position has not
ended. Each such transaction holds a lock on the table from before it draws a position, until it
ends. So a position is settled once all transactions that held a lock after it was drawn have ended.
A backup holds no such lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from fairlead.model import LaneKey, PartitionKey

Key = TypeVar("Key", bound=tuple[str | int, ...])

_MOST_MARKS = 100
MOST_LANES = 2000
"""Lanes without rows whose floors are kept, because each search looks into these lanes."""


class Mark(NamedTuple):
    """The highest position drawn at an instant, and the transactions that held a lock then."""

    position: int
    server: int
    """Instant at which the server started, in microseconds since the epoch."""
    holders: frozenset[str]


class KeyedFloors(Generic[Key]):
    """Floors of the lanes that were read or that searches have found. The task log has them by
    partition."""

    def __init__(self) -> None:
        self._floors: dict[Key, int] = {}
        self._marks: list[Mark] = []
        """Marks whose positions are not settled yet, and the latest one."""
        self.settled = 0
        """Highest position that is settled: a read that begins now sees all rows up to it."""

    @property
    def server(self) -> int:
        """Instant at which the server of the latest mark started; 0 before the first one."""
        return self._marks[-1].server if self._marks else 0

    def of(self, lane: Key) -> int:
        """Return the floor of a lane, which is 0 at first and raised by later searches."""
        return self._floors.setdefault(lane, 0)

    def rows(self) -> list[tuple[str | int, ...]]:
        """Return the key and the floor of each lane with a floor."""
        return [(*lane, floor) for lane, floor in self._floors.items() if floor]

    def found(
        self, first: Mapping[Key, int], settled: int, searched: Iterable[Key] | None = None
    ) -> None:
        """Raise the floors after a search, which returned the position of the first row of each
        lane that has rows. `settled`: the attribute at the beginning of the search. `searched`: the
        lanes that it searched; None: all."""
        if len(self._floors) > MOST_LANES + len(first):
            self._floors = {lane: floor for lane, floor in self._floors.items() if lane in first}
        if searched is None:
            searched = self._floors.keys() | first.keys()
        for lane in searched:
            floor = min(first.get(lane, settled + 1) - 1, settled)
            self._floors[lane] = max(self.of(lane), floor)

    def marked(self, mark: Mark) -> None:
        """Note a mark, which was read after the mark before it. Forget all floors if the server has
        restarted, because another server may have lost positions."""
        if self._marks and (
            mark.server != self._marks[-1].server or mark.position < self._marks[-1].position
        ):
            self._floors, self._marks, self.settled = {}, [], 0
        self._marks.append(mark)
        while len(self._marks) > 1 and self._is_settled(mark.holders):
            self.settled = self._marks.pop(0).position
        if len(self._marks) > _MOST_MARKS:
            del self._marks[1:-1:2]

    def _is_settled(self, holders: Collection[str]) -> bool:
        """Return whether the first mark's position is settled. Transactions that may have drawn it
        hold a lock at the next mark."""
        return self._marks[1].holders.isdisjoint(holders)


LaneFloors: TypeAlias = KeyedFloors[LaneKey]
PartitionFloors: TypeAlias = KeyedFloors[PartitionKey]
Floors: TypeAlias = KeyedFloors[Any]
