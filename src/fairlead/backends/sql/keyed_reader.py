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


class _Positions:
    """Positions through which the rows of each key of a lane have been read, and the keys that may
    have more rows."""

    def __init__(self, read_through: int) -> None:
        self.read_through = read_through
        self.unread: dict[str, int] = {}
        """Keys that may have rows above this position, at or below which their rows have been
        read."""
        self.read: dict[str, int] = {}
        """Position of keys without unread rows, at or below which their rows have been read."""
        self.without = read_through
        """Position through which every row without a key has been read, as far as is known."""
        self.apart: dict[Feed, int] = {}
        """Feeds of one name with rows above this position that the node has left."""
        self.lowered: dict[Feed, int] = {}
        """Positions of feeds that the node has left during the read under way."""
        self._tenants: Counter[str] = Counter()
        """Number of unread keys by tenant, without the keys that are tenants."""
        self._paths = 0
        """Number of these keys."""

    @property
    def tenants(self) -> int:
        """Number of tenants with unread keys."""
        return len(self.unread) - self._paths + len(self._tenants)

    def of(self, key: str, name: str = "") -> int:
        """Return the position through which the rows of a key, or of one name of it, were read."""
        if name and (apart := self.apart.get(Feed(key, name))) is not None:
            return apart
        if (unread := self.unread.get(key)) is not None:
            return unread
        return self.read.get(key, self.read_through)

    def add(self, key: str) -> bool:
        """Note that a key may have unread rows; return whether this is news."""
        if key in self.unread:
            return False
        position = self.read.pop(key, self.read_through)
        self.unread[key] = position if key else max(position, self.without)
        if (tenant := tenant_of(key)) != key:
            self._tenants[tenant] += 1
            self._paths += 1
        return True

    def remove(self, key: str) -> None:
        """Note that a key has no unread rows."""
        position = self.read[key] = self.unread.pop(key)
        if not key:
            self.without = position
        if (tenant := tenant_of(key)) != key:
            self._tenants[tenant] -= 1
            self._paths -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    def lower(self, last: int) -> None:
        """Read all rows above a position again."""
        for positions in (self.unread, self.read):
            positions.update((k, last) for k, seq in positions.items() if seq > last)
        self.without = min(self.without, last)

    def drop_most(self) -> None:
        """Drop the positions of half of the keys without unread rows, if there are too many."""
        if len(self.read) > MOST_POSITIONS:
            for key in [*islice(self.read, MOST_POSITIONS // 2)]:
                del self.read[key]


class _Search:
    """The search for keys: a walk over all of them, and a scan for rows without a key. Stores may
    lack an index of these, so the scan passes the whole lane, part by part."""

    def __init__(self, read_through: int) -> None:
        self.above: str | None = ""
        """Key after which the walk continues; None if no walk is under way."""
        self.has_walked = False
        """Whether a walk has ended."""
        self.is_due = False
        """Whether another walk follows: keys may have come behind the one under way."""
        self.sweep_at = 0.0
        """Monotonic seconds before which no other walk begins for a sweep."""
        self.took = 0.0
        """Seconds that the reads of the search under way have taken."""
        self.scanned = read_through
        """Position through which the scan has found no row without a key."""
        self.is_scanning = True
        """Whether a scan is under way."""

    def begin(self) -> None:
        """Begin a walk, after the one under way."""
        self.is_due = self.above is not None
        if self.above is None:
            self.above, self.took, self.is_scanning = "", 0.0, True

    def walked(self, keys: Sequence[tuple[str, int]], now: float) -> None:
        """Note the next keys of the walk. `now`: monotonic seconds."""
        self.above = keys[-1][0] if len(keys) == WALK else None
        if self.above is None:
            self.has_walked = True
            self.sweep_at = now + self.took / WALK_SHARE
            if self.is_due:
                self.begin()


class KeyedReader:
    """The reader of one lane above the position through which all rows have been read."""

    def __init__(
        self, lane: LaneKey, read_through: int, highest: int, store: LaneReads, clock: Clock
    ) -> None:
        """`highest`: highest position read so far."""
        self.lane = lane
        self.highest = highest
        self._last = highest
        """Highest position seen, also of rows that were not read."""
        self._store = store
        self._clock = clock
        self._positions = _Positions(read_through)
        self._search = _Search(read_through)
        self._announced: list[str] = []
        """Unread keys of new rows that the node does not know of yet."""
        self._found: list[Feed] = []
        """Other feeds with unread rows that the node does not know of, or was given a part of."""
        self._announced_at: set[int] = set()
        """Positions from which announced rows are to be looked at."""
        self._to_sweep: list[tuple[str, int]] = []
        """Keys whose rows above a position are to be read again."""
        self._plans: list[_Plan] = []
        self._has_room = True
        """Whether the node may have got room for more triggers."""

    @property
    def read_through(self) -> int:
        """Position through which all rows have been read."""
        return self._positions.read_through

    @property
    def has_news(self) -> bool:
        """Whether announced rows are to be looked at, or their keys to be passed to the node."""
        return bool(self._announced_at or self._announced)

    @property
    def is_searching(self) -> bool:
        """Whether there may be keys of which no row was received although the node has room."""
        return self._is_finding or self._search.is_scanning

    @property
    def _is_finding(self) -> bool:
        has_names = bool(self._announced or self._found)
        is_walking = self._search.above is not None
        return is_walking or has_names or bool(self._announced_at or self._plans)

    @property
    def is_beginning(self) -> bool:
        """Whether more keys must be found before the node can share its slots among them. A part of
        very many keys is enough."""
        return self._is_finding and len(self._positions.unread) < ENOUGH_KEYS

    @property
    def is_done(self) -> bool:
        """Whether all rows were read, as far as is known."""
        return not (self.is_searching or self._positions.unread or self._positions.apart)

    # news -----------------------------------------------------------------------------------------

    def room_freed(self) -> None:
        """Ask the node again how many triggers it takes."""
        self._has_room = True

    def announced_from(self, seq: int) -> None:
        """Look at the rows from this position on, which a notification announces."""
        self._announced_at.add(seq)

    def read_later(self, feeds: Mapping[Feed, int]) -> None:
        """Read the rows of these feeds above these positions again, when the node asks for them."""
        positions = self._positions
        for feed, position in feeds.items():
            positions.lowered[feed] = min(position, positions.lowered.get(feed, position))
            if feed.name:
                if feed not in positions.apart:
                    self._found.append(feed)
                positions.apart[feed] = min(position, positions.apart.get(feed, position))
            else:
                self._find(feed.key)
                positions.unread[feed.key] = min(position, positions.unread[feed.key])

    def read_together(self) -> None:
        """Read the rows of all names of a key together again."""
        positions = self._positions
        apart = [*positions.apart.items()]
        positions.apart.clear()
        for feed, position in apart:
            self.read_later({Feed(feed.key): position})

    def read_on(self) -> None:
        """Look at the rows that have come since, because notifications were lost."""
        self._announced_at.add(self._last + 1)

    def begin_sweep(self) -> None:
        """Walk over all keys, in case a notification was lost, and begin to read the rows above
        `read_through` again, in case the node has dropped some of them."""
        if self._clock.monotonic() >= self._search.sweep_at:
            self._search.scanned = self.read_through
            self.walk()
        if not self._to_sweep:
            unread = self._positions.unread.items()
            known = [
                *self._positions.read,
                *(key for key, seq in unread if seq > self.read_through),
            ]
            self._to_sweep = [(key, self.read_through) for key in known]

    @property
    def is_sweeping(self) -> bool:
        """Whether rows are to be read again."""
        return bool(self._to_sweep)

    def walk(self) -> None:
        """Walk over all keys, to find those with unread rows."""
        self._search.begin()

    def _find(self, key: str) -> None:
        """Note that a key may have unread rows."""
        if self._positions.add(key):
            self._found.append(Feed(key))

    # reads ----------------------------------------------------------------------------------------

    async def read(self, room: Room) -> Sequence[Trigger] | None:
        """Return the next triggers, in the order of their positions; None if there are none, or no
        room for them. May return none although there are more."""
        if self._announced_at:
            await self._read_announced()
        elif self._search.above is not None and not self._plans:
            await self._walk_on(self._search.above)
        elif self._search.is_scanning and not self._plans:
            await self._scan()
        has_unread = self._positions.unread or self._positions.apart
        is_more = self._has_room and has_unread and not self._plans
        if self._announced or self._found or is_more:
            self._plan(room)
        if self._plans:
            return await self._read_plan()
        return () if self._announced_at or self.is_searching else None

    def _plan(self, room: Room) -> None:
        """Ask the node which keys to read next."""
        unread, is_walking = self._positions.tenants, self._search.above is not None
        if is_walking:
            unread = max(unread, ENOUGH_KEYS)  # the walk will find more
        planned = sum(len(plan.keys) * plan.limit for plan in self._plans)
        news = KeyNews(self._announced, self._found, unread, planned)
        self._announced, self._found, self._has_room = [], [], False
        like: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        plans: list[_Plan] = []
        most = 1 if is_walking and len(self._positions.unread) < ENOUGH_KEYS else PAGE
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
        positions = self._positions
        positions.lowered.clear()
        feeds = {key: Feed(key, plan.name) for key in plan.keys}
        left = [(key, feed) for key, feed in feeds.items() if feed in positions.apart]
        asked = [(key, positions.apart[feed]) for key, feed in left]
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
            if feed not in positions.apart:
                continue  # the rows of all names are read together again
            named = [row for row in page if row.name == plan.name]
            read = [positions.lowered[feed]] if feed in positions.lowered else []
            if not read:  # else they are read again, after those before them
                found += named[: plan.limit]
            if len(named) > plan.limit:
                read.append(named[plan.limit - 1].seq)
            elif not key and through is not None:
                read.append(through)
            elif key and len(page) == most:
                read.append(page[-1].seq)
            if not read:
                del positions.apart[feed]
                continue
            positions.apart[feed] = min(read)
            self._found.append(feed)
        return sorted(found, key=attrgetter("seq"))

    async def _read_all(self, plan: _Plan) -> Sequence[Trigger]:
        """Return the next rows of some keys."""
        positions = self._positions
        positions.lowered.clear()
        keys, limit = plan.keys, plan.limit
        asked = [(key, positions.unread[key]) for key in keys if key in positions.unread]
        if not asked:
            return ()
        rows, through = await self._rows_of(asked, limit)
        counts = dict.fromkeys(keys, 0)
        given: list[Trigger] = []
        passed: set[str] = set()
        for row in rows:
            key = self._key(row)
            counts[key] += 1
            positions.unread[key] = row.seq
            if row.seq > positions.lowered.get(Feed(key), row.seq):
                continue  # it is read again, after those before it
            if positions.apart and row.seq > positions.apart.get(Feed(key, row.name), row.seq):
                passed.add(key)
            else:
                given.append(row)
        passed.difference_update(map(self._key, given))
        if through is not None:
            positions.unread[""] = through
        for key, _ in asked:
            if Feed(key) in positions.lowered:
                positions.unread[key] = min(positions.lowered[Feed(key)], positions.unread[key])
                self._found.append(Feed(key))
            elif not (counts[key] == limit if key else through is not None):
                positions.remove(key)
            elif key in passed:  # at once, and more: other names may be behind many rows
                self._plans.insert(0, _Plan([key], min(PAGE, 2 * limit)))
            else:
                self._found.append(Feed(key))
        if rows:
            self.highest = max(self.highest, rows[-1].seq)
        positions.drop_most()
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
        positions = self._positions
        positions.read_through = min(positions.read_through, first - 1)
        if rows:
            self._last = max(self._last, rows[-1].seq)
        if len(rows) == ANNOUNCED_PAGE:
            last = rows[-1].seq
            self._announced_at |= {seq for seq in announced if seq > last}
            if self.highest > last:
                positions.lower(last)
                self._search.scanned = min(self._search.scanned, last)
            self.walk()
        for row in rows:
            key = row.fairness_key
            if positions.add(key):
                self._announced.append(key)
            if positions.unread[key] >= row.seq:
                positions.unread[key] = row.seq - 1

    async def sweep(self, most: int) -> list[Trigger]:
        """Return at most about `most` of the rows that were read before."""
        keys = self._to_sweep[: min(WALK, most)]
        limit = max(1, most // max(1, len(keys)))
        rows, through = await self._rows_of(keys, limit)
        del self._to_sweep[: len(keys)]
        if through is not None and through < self._positions.of(""):
            self._to_sweep.append(("", through))
        counts: dict[str, int] = {}
        for row in rows:
            key = self._key(row)
            counts[key] = counts.get(key, 0) + 1
            if key and counts[key] == limit and row.seq < self._positions.of(key):
                self._to_sweep.append((key, row.seq))
        return [row for row in rows if row.seq <= self._positions.of(self._key(row), row.name)]

    def _key(self, row: Trigger) -> str:
        return row.fairness_key

    async def _scan(self) -> None:
        """Look for the next row without a key in the next part of the lane."""
        positions, search = self._positions, self._search
        search.is_scanning = "" not in positions.unread  # or its rows are read anyway
        if not search.is_scanning:
            return
        began = self._clock.monotonic()
        above = max(search.scanned, positions.read.get("", 0))
        rows, through = await self._store.database.read(
            self._store.ready_without(self.lane, above, 1)
        )
        search.took += self._clock.monotonic() - began
        search.sweep_at = max(search.sweep_at, began + search.took / WALK_SHARE)
        if rows:
            self._find("")
            positions.unread[""] = rows[0].seq - 1
        search.is_scanning = not rows and through is not None
        if search.is_scanning and through is not None:
            search.scanned = through
            positions.without = max(positions.without, through)

    async def _walk_on(self, above: str) -> None:
        began = self._clock.monotonic()
        database, store = self._store.database, self._store
        keys = await database.read(store.ready_keys(self.lane, above, WALK))
        now = self._clock.monotonic()
        self._search.took += now - began
        if self._search.is_scanning and not self.is_beginning:
            await self._scan()
        last = self._last
        for key, seq in keys:
            self._last = max(self._last, seq)
            if seq <= self._positions.of(key):
                continue
            if not (self._search.has_walked and seq > last):
                self._find(key)  # the first walk cannot know which rows are new
            elif self._positions.add(key):
                self._announced.append(key)
        self._search.walked(keys, now)


class ArrivalReader(KeyedReader):
    """The reader of one lane in the order of arrival, whose one key is known."""

    def __init__(
        self, lane: LaneKey, read_through: int, highest: int, store: LaneReads, clock: Clock
    ) -> None:
        super().__init__(lane, read_through, highest, store, clock)
        self._search.above, self._search.is_scanning = None, False

    def announced_from(self, seq: int) -> None:
        self._positions.read_through = min(self.read_through, seq - 1)
        self.read_later({Feed(""): seq - 1})

    def read_on(self) -> None:
        self._find("")

    def walk(self) -> None:
        self._find("")

    async def _rows_of(
        self, asked: Sequence[tuple[str, int]], limit: int
    ) -> tuple[list[Trigger], int | None]:
        [(_, position)] = asked
        rows = await self._store.database.read(self._store.ready(self.lane, position, limit))
        return rows, rows[-1].seq if len(rows) == limit else None

    def _key(self, row: Trigger) -> str:
        return ""
