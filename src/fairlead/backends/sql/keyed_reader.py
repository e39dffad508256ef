"""The reader of a long lane, by fairness key: it reads the rows of each key in their order, and
leaves the rest of a flood in the store until the node has room for it.

So a key that arrives behind a flood waits for no row of the flood. The reader learns of keys in two
ways: it looks at the first rows that each notification announces, and it walks the index from key
to key when these rows may not be all. Every row above `floor` that is not at or below the position
of its key is unread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fairlead.model import LaneKey, Trigger
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import Room

LOOK = 200
"""Announced rows that are looked at. If there are more, a walk over all keys finds the rest."""

WALK = 500
"""Keys in one read of a walk."""

MOST_BEFORE_WALK = 10_000
"""Least number of unread keys that is assumed while a walk is under way."""

PAGE = 2000
"""Greatest number of triggers in one read of several keys, unless there are more keys."""

MOST_POSITIONS = 20_000
"""Keys without unread rows whose position is remembered. Rows of other such keys are read again."""


class _Plan(NamedTuple):
    """Keys to read next, and how many triggers of each."""

    keys: list[str]
    limit: int


class KeyedReader:
    """The reader of one lane above the position `floor`, up to which all rows have been read."""

    def __init__(self, lane: LaneKey, floor: int, highest: int, store: TaskStore) -> None:
        """`highest`: highest position read so far."""
        self.lane = lane
        self.floor = floor
        self.highest = highest
        self._store = store
        self._positions: dict[str, int] = {}
        """Position by key, at or below which its rows have been read."""
        self._unread: dict[str, None] = {}
        """Keys that may have rows above their position."""
        self._fresh: dict[str, None] = {"": None}
        """Unread keys that the node has not been asked about yet."""
        self._looks: set[int] = set()
        """Positions from which announced rows are to be looked at."""
        self._walk: str | None = ""
        """Key after which the walk continues; None if no walk is under way."""
        self._is_walk_due = False
        """Whether another walk follows: keys may have come behind the one under way."""
        self._to_sweep: list[tuple[str, int]] = []
        """Keys whose rows above a position are to be read again."""
        self._plans: list[_Plan] = []
        self._has_room = True
        """Whether the node may have got room for more triggers."""

    @property
    def is_searching(self) -> bool:
        """Whether there may be keys of which no row was received although the node has room."""
        return self._walk is not None or bool(self._looks or self._fresh or self._plans)

    @property
    def is_done(self) -> bool:
        """Whether all rows were read, as far as is known."""
        return not self.is_searching and not self._unread

    # news -----------------------------------------------------------------------------------------

    def room_freed(self) -> None:
        """Ask the node again how many triggers it takes."""
        self._has_room = True

    def look_from(self, seq: int) -> None:
        """Look at the rows from this position on, which a notification announces."""
        self._looks.add(seq)

    def begin_sweep(self) -> None:
        """Walk over all keys, in case a notification was lost, and begin to read the rows above
        `floor` again, in case the node has dropped some of them."""
        self.walk()
        self._to_sweep = self._to_sweep or [(key, self.floor) for key in self._positions]

    @property
    def is_sweeping(self) -> bool:
        """Whether rows are to be read again."""
        return bool(self._to_sweep)

    def walk(self) -> None:
        """Walk over all keys, to find those with unread rows."""
        self._is_walk_due = True
        if self._walk is None:
            self._begin_walk()

    def _begin_walk(self) -> None:
        self._walk, self._is_walk_due = "", False
        self._add("")

    def _add(self, key: str) -> None:
        if key not in self._unread:
            self._unread[key] = self._fresh[key] = None

    # reads ----------------------------------------------------------------------------------------

    async def read(self, room: Room) -> Sequence[Trigger] | None:
        """Return the next triggers, in the order of their positions; None if there are none, or no
        room for them. May return none although there are more."""
        if self._looks:
            await self._look()
        elif self._walk is not None and not self._fresh:
            await self._walk_on(self._walk)
        if self._fresh:
            self._plan(room, self._fresh, first=True)
            self._fresh = {}
        if not self._plans and self._has_room and self._unread:
            self._has_room = False
            self._plan(room, self._unread)
        if self._plans:
            return await self._read_plan()
        return () if self._looks or self._walk is not None else None

    def _plan(self, room: Room, keys: Collection[str], first: bool = False) -> None:
        unread = len(self._unread)
        if self._walk is not None:
            unread = max(unread, MOST_BEFORE_WALK)  # the walk will find more
        of_limit: dict[int, list[str]] = {}
        for key, limit in room.of_keys(self.lane, keys, unread) or ():
            of_limit.setdefault(limit, []).append(key)
        plans = []
        for limit, chosen in of_limit.items():
            at_once = max(1, PAGE // limit)
            plans += [
                _Plan(chosen[low : low + at_once], limit) for low in range(0, len(chosen), at_once)
            ]
        self._plans = [*plans, *self._plans] if first else [*self._plans, *plans]

    async def _read_plan(self) -> Sequence[Trigger]:
        keys, limit = self._plans.pop(0)
        asked = [(key, self._position(key)) for key in keys if key in self._unread]
        if not asked:
            return ()
        try:
            rows = await self._store.database.read(self._store.ready_of(self.lane, asked, limit))
        except BaseException:
            self._plans.insert(0, _Plan(keys, limit))
            raise
        counts = dict.fromkeys(keys, 0)
        for row in rows:
            counts[row.fairness_key] += 1
            self._positions[row.fairness_key] = row.seq
        for key, _ in asked:
            if counts[key] < limit:
                del self._unread[key]
        if rows:
            self.highest = max(self.highest, rows[-1].seq)
        if len(self._positions) > MOST_POSITIONS + len(self._unread):
            self._positions = {k: seq for k, seq in self._positions.items() if k in self._unread}
        return rows

    async def _look(self) -> None:
        """Find the keys of announced rows. A row may lie below the position of its key, because
        its transaction was slow: read on from there."""
        looks, self._looks = self._looks, set()  # others may come during the read
        first = min(looks)
        try:
            rows = await self._store.database.read(self._store.ready(self.lane, first - 1, LOOK))
        except BaseException:
            self._looks |= looks
            raise
        self.floor = min(self.floor, first - 1)
        if len(rows) == LOOK:
            last = rows[-1].seq
            self._looks |= {seq for seq in looks if seq > last}
            self._positions = {key: min(seq, last) for key, seq in self._positions.items()}
            self.walk()
        for row in rows:
            if self._position(row.fairness_key) >= row.seq:
                self._positions[row.fairness_key] = row.seq - 1
            self._add(row.fairness_key)

    async def sweep(self, most: int) -> list[Trigger]:
        """Return at most about `most` of the rows that were read before."""
        keys = self._to_sweep[: min(WALK, most)]
        limit = max(1, most // max(1, len(keys)))
        rows = await self._store.database.read(self._store.ready_of(self.lane, keys, limit))
        del self._to_sweep[: len(keys)]
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.fairness_key] = counts.get(row.fairness_key, 0) + 1
            if counts[row.fairness_key] == limit and row.seq < self._position(row.fairness_key):
                self._to_sweep.append((row.fairness_key, row.seq))
        return [row for row in rows if row.seq <= self._position(row.fairness_key)]

    def _position(self, key: str) -> int:
        return self._positions.get(key, self.floor)

    async def _walk_on(self, above: str) -> None:
        keys = await self._store.database.read(self._store.ready_keys(self.lane, above, WALK))
        for key, seq in keys:
            if seq > self._position(key):
                self._add(key)
        self._walk = keys[-1][0] if len(keys) == WALK else None
        if self._walk is None and self._is_walk_due:
            self._begin_walk()
