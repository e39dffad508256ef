"""The reader of a long lane, by fairness key: it reads the rows of each key in their order, and
leaves the rest of a flood in the store until the node has room for it.

So a key that arrives behind a flood waits for no row of the flood. The reader learns of keys in two
ways: it looks at the first rows that each notification announces, and it walks the index from key
to key when these rows may not be all. All rows up to `read_through` have been read. Above it, the
rows of each key have been read up to a position of the key. Example: read through 10, "a" up to 25.
A row of "a" at 20 has been read, and one of "b" at 20 is unread.

`ArrivalReader` reads a fifo lane, in which every row has the key "", while a name is read apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from fairlead.clock import Clock
from fairlead.model import Feed, LaneKey, Trigger, tenant_of
from fairlead.ports.task_store import LaneReads
from fairlead.ports.trigger_channel import KeyNews, Room

ANNOUNCED_PAGE = 200
"""Announced rows that are looked at. If there are more, a walk over all keys finds the rest."""

WALK = 500
"""Keys in one read of a walk."""

WALK_SHARE = 0.05
"""Greatest share of the time that walks take which only make up for lost notifications."""

ENOUGH_KEYS = 2000
"""Unread keys with which dispatch may begin before all are found. While a walk is under way, at
least as many are assumed."""

PAGE = 2000
"""Greatest number of triggers in one read of several keys."""

MOST_POSITIONS = 20_000
"""Keys without unread rows whose position is remembered. Rows of other such keys are read again."""


APART = 500
"""Least number of rows that a read looks at for those of one name."""


class _Plan(NamedTuple):
    """Keys to read next, and how many triggers of each; of one name, if it is not empty."""

    keys: list[str]
    limit: int
    name: str = ""


class KeyedReader:
    """The reader of one lane above the position through which all rows have been read."""

    def __init__(
        self, lane: LaneKey, read_through: int, highest: int, store: LaneReads, clock: Clock
    ) -> None:
        """`highest`: highest position read so far."""
        self.lane = lane
        self.read_through = read_through
        self.highest = highest
        self._last = highest
        """Highest position seen, also of rows that were not read."""
        self._store = store
        self._clock = clock
        self._unread: dict[str, int] = {}
        """Keys that may have rows above this position, at or below which their rows have been
        read."""
        self._read: dict[str, int] = {}
        """Position of keys without unread rows, at or below which their rows have been read."""
        self._apart: dict[Feed, int] = {}
        """Feeds of one name with rows above this position that the node has left."""
        self._lowered: dict[Feed, int] = {}
        """Positions of feeds that the node has left during the read under way."""
        self._tenants: Counter[str] = Counter()
        """Number of unread keys by tenant, without the keys that are tenants."""
        self._paths = 0
        """Number of these keys."""
        self._announced: list[str] = []
        """Unread keys of new rows that the node does not know of yet."""
        self._found: list[Feed] = []
        """Other feeds with unread rows that the node does not know of, or was given a part of."""
        self._announced_at: set[int] = set()
        """Positions from which announced rows are to be looked at."""
        self._walk: str | None = ""
        """Key after which the walk continues; None if no walk is under way."""
        self._has_walked = False
        """Whether a walk has ended."""
        self._is_walk_due = False
        """Whether another walk follows: keys may have come behind the one under way."""
        self._walk_at = 0.0
        """Monotonic seconds before which no other walk begins for a sweep."""
        self._walked = 0.0
        """Seconds that the reads of the walk under way have taken."""
        self._scanned = read_through
        """Position through which the search under way has found no row without a key."""
        self._without = read_through
        """Position through which every row without a key has been read, as far as is known."""
        self._is_scanning = True
        """Whether a search for rows without a key is under way. Stores may lack an index of them,
        so it passes the whole lane, part by part."""
        self._to_sweep: list[tuple[str, int]] = []
        """Keys whose rows above a position are to be read again."""
        self._plans: list[_Plan] = []
        self._has_room = True
        """Whether the node may have got room for more triggers."""

    @property
    def has_news(self) -> bool:
        """Whether announced rows are to be looked at, or their keys to be passed to the node."""
        return bool(self._announced_at or self._announced)

    @property
    def is_searching(self) -> bool:
        """Whether there may be keys of which no row was received although the node has room."""
        return self._is_finding or self._is_scanning

    @property
    def _is_finding(self) -> bool:
        has_names = bool(self._announced or self._found)
        return self._walk is not None or has_names or bool(self._announced_at or self._plans)

    @property
    def is_beginning(self) -> bool:
        """Whether more keys must be found before the node can share its slots among them. A part of
        very many keys is enough."""
        return self._is_finding and len(self._unread) < ENOUGH_KEYS

    @property
    def is_done(self) -> bool:
        """Whether all rows were read, as far as is known."""
        return not (self.is_searching or self._unread or self._apart)

    # news -----------------------------------------------------------------------------------------

    def room_freed(self) -> None:
        """Ask the node again how many triggers it takes."""
        self._has_room = True

    def announced_from(self, seq: int) -> None:
        """Look at the rows from this position on, which a notification announces."""
        self._announced_at.add(seq)

    def read_later(self, feeds: Mapping[Feed, int]) -> None:
        """Read the rows of these feeds above these positions again, when the node asks for them."""
        for feed, position in feeds.items():
            self._lowered[feed] = min(position, self._lowered.get(feed, position))
            if feed.name:
                if feed not in self._apart:
                    self._found.append(feed)
                self._apart[feed] = min(position, self._apart.get(feed, position))
                continue
            self._add(feed.key, self._found)
            self._unread[feed.key] = min(position, self._unread[feed.key])

    def read_together(self) -> None:
        """Read the rows of all names of a key together again."""
        for feed, position in self._apart.items():
            self._add(feed.key, self._found)
            self._unread[feed.key] = min(position, self._unread[feed.key])
            self._lowered[Feed(feed.key)] = self._unread[feed.key]
        self._apart.clear()

    def read_on(self) -> None:
        """Look at the rows that have come since, because notifications were lost."""
        self._announced_at.add(self._last + 1)

    def begin_sweep(self) -> None:
        """Walk over all keys, in case a notification was lost, and begin to read the rows above
        `read_through` again, in case the node has dropped some of them."""
        if self._clock.monotonic() >= self._walk_at:
            self._scanned = self.read_through
            self.walk()
        if not self._to_sweep:
            known = [
                *self._read,
                *(key for key, seq in self._unread.items() if seq > self.read_through),
            ]
            self._to_sweep = [(key, self.read_through) for key in known]

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
        self._walk, self._is_walk_due, self._walked = "", False, 0.0
        self._is_scanning = True

    def _add(self, key: str, new: list[str] | list[Feed]) -> None:
        if key not in self._unread:
            position = self._read.pop(key, self.read_through)
            self._unread[key] = position if key else max(position, self._without)
            if (tenant := tenant_of(key)) != key:
                self._tenants[tenant] += 1
                self._paths += 1
            if new is self._found:
                self._found.append(Feed(key))
            else:
                self._announced.append(key)

    def _remove(self, key: str) -> None:
        position = self._read[key] = self._unread.pop(key)
        if not key:
            self._without = position
        if (tenant := tenant_of(key)) != key:
            self._tenants[tenant] -= 1
            self._paths -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    # reads ----------------------------------------------------------------------------------------

    async def read(self, room: Room) -> Sequence[Trigger] | None:
        """Return the next triggers, in the order of their positions; None if there are none, or no
        room for them. May return none although there are more."""
        if self._announced_at:
            await self._read_announced()
        elif self._walk is not None and not self._plans:
            await self._walk_on(self._walk)
        elif self._is_scanning and not self._plans:
            await self._scan()
        is_more = self._has_room and (self._unread or self._apart) and not self._plans
        if self._announced or self._found or is_more:
            self._plan(room)
        if self._plans:
            return await self._read_plan()
        return () if self._announced_at or self._walk is not None or self._is_scanning else None

    def _plan(self, room: Room) -> None:
        """Ask the node which keys to read next."""
        unread = len(self._unread) - self._paths + len(self._tenants)  # tenants
        if self._walk is not None:
            unread = max(unread, ENOUGH_KEYS)  # the walk will find more
        planned = sum(len(plan.keys) * plan.limit for plan in self._plans)
        news = KeyNews(self._announced, self._found, unread, planned)
        self._announced, self._found, self._has_room = [], [], False
        like: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        plans: list[_Plan] = []
        most = 1 if self._walk is not None and len(self._unread) < ENOUGH_KEYS else PAGE
        for feed, limit in room.choose_keys(self.lane, news):  # at first, a row of each key
            like[feed.name, min(limit, most)].append(feed.key)
        for (name, limit), keys in like.items():
            at_once = max(1, PAGE // (max(limit, APART) if name else limit))
            plans += [
                _Plan(keys[low : low + at_once], limit, name)
                for low in range(0, len(keys), at_once)
            ]
        self._plans = [*plans, *self._plans] if news.announced else [*self._plans, *plans]

    async def _read_plan(self) -> Sequence[Trigger]:
        plan = self._plans.pop(0)
        try:
            return await (self._read_apart(plan) if plan.name else self._read_all(plan))
        except BaseException:
            self._plans.insert(0, plan)
            raise

    async def _read_apart(self, plan: _Plan) -> Sequence[Trigger]:
        """Return the next rows of one name of some keys."""
        self._lowered.clear()
        feeds = {key: Feed(key, plan.name) for key in plan.keys}
        asked = [(key, self._apart[feed]) for key, feed in feeds.items() if feed in self._apart]
        if not asked:
            return ()
        most = max(plan.limit, APART)
        rows, through = await self._rows_of(asked, most)
        pages: defaultdict[str, list[Trigger]] = defaultdict(list)
        for row in rows:
            pages[self._key(row)].append(row)
        found: list[Trigger] = []
        for key, _ in asked:
            feed, page = feeds[key], pages[key]
            if feed not in self._apart:
                continue  # the rows of all names are read together again
            named = [row for row in page if row.name == plan.name]
            read = [self._lowered[feed]] if feed in self._lowered else []
            if not read:  # else they are read again, after those before them
                found += named[: plan.limit]
            if len(named) > plan.limit:
                read.append(named[plan.limit - 1].seq)
            elif not key and through is not None:
                read.append(through)
            elif key and len(page) == most:
                read.append(page[-1].seq)
            if not read:
                del self._apart[feed]
                continue
            self._apart[feed] = min(read)
            self._found.append(feed)
        return sorted(found, key=attrgetter("seq"))

    async def _read_all(self, plan: _Plan) -> Sequence[Trigger]:
        """Return the next rows of some keys."""
        self._lowered.clear()
        keys, limit = plan.keys, plan.limit
        asked = [(key, self._unread[key]) for key in keys if key in self._unread]
        if not asked:
            return ()
        rows, through = await self._rows_of(asked, limit)
        counts = dict.fromkeys(keys, 0)
        given: list[Trigger] = []
        passed: set[str] = set()
        for row in rows:
            key = self._key(row)
            counts[key] += 1
            self._unread[key] = row.seq
            if row.seq > self._lowered.get(Feed(key), row.seq):
                continue  # it is read again, after those before it
            if self._apart and row.seq > self._apart.get(Feed(key, row.name), row.seq):
                passed.add(key)
            else:
                given.append(row)
        passed.difference_update(map(self._key, given))
        if through is not None:
            self._unread[""] = through
        for key, _ in asked:
            if Feed(key) in self._lowered:
                self._unread[key] = min(self._lowered[Feed(key)], self._unread[key])
                self._found.append(Feed(key))
            elif not (counts[key] == limit if key else through is not None):
                self._remove(key)
            elif key in passed:  # at once, and more: other names may be behind many rows
                self._plans.insert(0, _Plan([key], min(PAGE, 2 * limit)))
            else:
                self._found.append(Feed(key))
        if rows:
            self.highest = max(self.highest, rows[-1].seq)
        if len(self._read) > MOST_POSITIONS:
            for key in [*islice(self._read, MOST_POSITIONS // 2)]:
                del self._read[key]
        return given

    async def _rows_of(
        self, asked: Sequence[tuple[str, int]], limit: int
    ) -> tuple[list[Trigger], int | None]:
        """Return the next rows of each (key, position), and the position through which those
        without a key were read, None if that is the end."""
        database, store, through = self._store.database, self._store, None
        rows = list[Trigger]()
        if named := [each for each in asked if each[0]]:
            rows = await database.read(store.ready_of(self.lane, named, limit))
        for _, position in (each for each in asked if not each[0]):
            found, through = await database.read(store.ready_without(self.lane, position, limit))
            rows = sorted([*rows, *found], key=attrgetter("seq"))
        return rows, through

    async def _read_announced(self) -> None:
        """Find the keys of announced rows. A row may lie below the position of its key, because
        its transaction was slow: read on from there."""
        announced, self._announced_at = self._announced_at, set()  # more may come meanwhile
        first = min(announced)
        try:
            ready = self._store.ready(self.lane, first - 1, ANNOUNCED_PAGE)
            rows = await self._store.database.read(ready)
        except BaseException:
            self._announced_at |= announced
            raise
        self.read_through = min(self.read_through, first - 1)
        if rows:
            self._last = max(self._last, rows[-1].seq)
        if len(rows) == ANNOUNCED_PAGE:
            last = rows[-1].seq
            self._announced_at |= {seq for seq in announced if seq > last}
            if self.highest > last:
                for positions in (self._unread, self._read):
                    positions.update((k, last) for k, seq in positions.items() if seq > last)
                self._scanned, self._without = min(self._scanned, last), min(self._without, last)
            self.walk()
        for row in rows:
            self._add(row.fairness_key, self._announced)
            if self._unread[row.fairness_key] >= row.seq:
                self._unread[row.fairness_key] = row.seq - 1

    async def sweep(self, most: int) -> list[Trigger]:
        """Return at most about `most` of the rows that were read before."""
        keys = self._to_sweep[: min(WALK, most)]
        limit = max(1, most // max(1, len(keys)))
        rows, through = await self._rows_of(keys, limit)
        del self._to_sweep[: len(keys)]
        if through is not None and through < self._position(""):
            self._to_sweep.append(("", through))
        counts: dict[str, int] = {}
        for row in rows:
            key = self._key(row)
            counts[key] = counts.get(key, 0) + 1
            if key and counts[key] == limit and row.seq < self._position(key):
                self._to_sweep.append((key, row.seq))
        return [row for row in rows if row.seq <= self._position(self._key(row), row.name)]

    def _key(self, row: Trigger) -> str:
        return row.fairness_key

    def _position(self, key: str, name: str = "") -> int:
        """Return the position through which the rows of a key, or of one name of it, were read."""
        if name and (apart := self._apart.get(Feed(key, name))) is not None:
            return apart
        if (unread := self._unread.get(key)) is not None:
            return unread
        return self._read.get(key, self.read_through)

    async def _scan(self) -> None:
        """Look for the next row without a key in the next part of the lane."""
        self._is_scanning = "" not in self._unread  # or its rows are read anyway
        if not self._is_scanning:
            return
        began = self._clock.monotonic()
        above = max(self._scanned, self._read.get("", 0))
        rows, through = await self._store.database.read(
            self._store.ready_without(self.lane, above, 1)
        )
        self._walked += self._clock.monotonic() - began
        self._walk_at = max(self._walk_at, began + self._walked / WALK_SHARE)
        if rows:
            self._add("", self._found)
            self._unread[""] = rows[0].seq - 1
        self._is_scanning = not rows and through is not None
        if self._is_scanning and through is not None:
            self._scanned = through
            self._without = max(self._without, through)

    async def _walk_on(self, above: str) -> None:
        began = self._clock.monotonic()
        database, store = self._store.database, self._store
        keys = await database.read(store.ready_keys(self.lane, above, WALK))
        now = self._clock.monotonic()
        self._walked += now - began
        if self._is_scanning and not self.is_beginning:
            await self._scan()
        last = self._last
        for key, seq in keys:
            self._last = max(self._last, seq)
            if seq > self._position(key):
                # The first walk cannot know which rows are new.
                is_new = self._has_walked and seq > last
                self._add(key, self._announced if is_new else self._found)
        self._walk = keys[-1][0] if len(keys) == WALK else None
        if self._walk is None:
            self._has_walked = True
            self._walk_at = now + self._walked / WALK_SHARE
            if self._is_walk_due:
                self._begin_walk()


class ArrivalReader(KeyedReader):
    """The reader of one lane in the order of arrival, whose one key is known."""

    def __init__(
        self, lane: LaneKey, read_through: int, highest: int, store: LaneReads, clock: Clock
    ) -> None:
        super().__init__(lane, read_through, highest, store, clock)
        self._walk, self._is_scanning = None, False

    def announced_from(self, seq: int) -> None:
        self.read_through = min(self.read_through, seq - 1)
        self.read_later({Feed(""): seq - 1})

    def read_on(self) -> None:
        self._add("", self._found)

    def walk(self) -> None:
        self._add("", self._found)

    async def _rows_of(
        self, asked: Sequence[tuple[str, int]], limit: int
    ) -> tuple[list[Trigger], int | None]:
        [(_, position)] = asked
        rows = await self._store.database.read(self._store.ready(self.lane, position, limit))
        return rows, rows[-1].seq if len(rows) == limit else None

    def _key(self, row: Trigger) -> str:
        return ""
