"""A lane whose rows are read by fairness key: which keys to read next, and how many rows of each,
so that memory holds the triggers that come first. Nothing is stored about the order. A fifo lane
has one key, "".

A limit may stop many triggers while others could run. Beyond a few, which wait in memory, these are
left in their rows: they and all later ones of their column (the triggers that the same limits stop)
are read apart, as the few start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

from fairlead.core.fair.flows import FairLane, TenantFlow
from fairlead.core.fair.groups import FEW
from fairlead.core.fair.unread_rows import Counts, UnreadRows
from fairlead.model import Feed, Trigger, tenant_of


class _Apart(UnreadRows):
    """Unread rows of a column that are read apart."""

    def __init__(self, flows: FairLane, held: Counts, name: str, most: int) -> None:
        super().__init__(flows, held)
        self.name = name
        """Name of the tasks."""
        self.most = most
        """Triggers in memory at most."""
        self.held = 0
        """Triggers in memory."""

    @property
    def is_asking(self) -> bool:
        """Whether to read more."""
        return self.held <= self.most // 2 and len(self) > 0


class KeyedLane:
    """Counts of the triggers of one lane in memory, and the keys with rows that are not there."""

    def __init__(self, flows: FairLane, column_of: Callable[[Trigger], Hashable]) -> None:
        """`column_of`: returns the column of a trigger."""
        self._flows = flows
        self._column_of = column_of
        self.key = flows.key
        """Return the key by which the rows of a trigger are read: "" in a fifo lane."""
        self.is_fair = flows.is_fair
        """Whether the rows of a long lane are read by fairness key; else in their order."""
        self.is_open = True
        """Whether triggers that come start at once; while the keys of a lane are found, all wait
        for the first of them."""
        self.capacity = 1
        """Triggers in memory, but a quarter more for new keys."""
        self.held = 0
        """Triggers in memory that have not started, without those of columns read apart."""
        self._held = Counts({}, {})
        """All of them, by tenant and by key."""
        self._unread = UnreadRows(flows, self._held)
        self._new: dict[str, None] = {}
        """Keys with new rows that go ahead of those that wait."""
        self._apart: dict[Hashable, _Apart] = {}
        self._may_ask = False
        """Whether one of them may ask for rows."""
        self._feeds: dict[Feed, Hashable] = {}
        """Column of each feed of one name."""

    @property
    def has_unread(self) -> bool:
        """Whether rows are to be asked for."""
        return bool(self._new or len(self._unread) or any(map(len, self._apart.values())))

    @property
    def size(self) -> int:
        """Number of all triggers in memory."""
        return self.held + sum(apart.held for apart in self._apart.values())

    # triggers come and go -------------------------------------------------------------------------

    def keep(self, triggers: Sequence[Trigger]) -> tuple[Sequence[Trigger], dict[Feed, int]]:
        """Count triggers that come into memory. Return those that memory takes, and by feed the
        position above which the rows of the others are to be read later."""
        if not self._apart and self.held + len(triggers) <= self.most:
            self.came(triggers)
            return triggers, {}
        kept, left = list[Trigger](), dict[Feed, int]()
        for trigger in triggers:
            apart = self._apart.get(self._column(trigger))
            feed = Feed(self.key(trigger), "" if apart is None else apart.name)
            has_room = self.held < self.most if apart is None else apart.held < apart.most
            if has_room and feed not in left:  # those of a key stay in their order
                self.came([trigger])
                kept.append(trigger)
            else:
                left.setdefault(feed, trigger.seq - 1)
                if apart is not None:
                    self._feeds[feed] = self._column(trigger)
        return kept, left

    def came(self, triggers: Collection[Trigger]) -> None:
        """Count triggers that came into memory."""
        for key, rows in self._count(triggers, 1):
            self._unread.came(key, rows)

    def left(self, triggers: Collection[Trigger]) -> None:
        """Count triggers that left memory: they started, or were dropped."""
        self._count(triggers, -1)

    def _count(self, triggers: Collection[Trigger], sign: int) -> Iterable[tuple[str, int]]:
        """Count triggers that came or left; return their number by key."""
        if not triggers:
            return ()
        self.held += sign * len(triggers)
        if self._apart:
            for trigger in triggers:
                if (apart := self._apart.get(self._column(trigger))) is not None:
                    apart.held += sign
                    self.held -= sign
                    if sign > 0:
                        apart.came(self.key(trigger), 1)
                        continue
                    self._may_ask = True
                    if not apart.held and len(apart):  # they start quickly
                        most = max(apart.most, self.full // len(self._apart))
                        apart.most = min(2 * apart.most, most)
        keys = {"": len(triggers)}
        if self.is_fair:
            keys = Counter([trigger.fairness_key for trigger in triggers])
        tenants, inside = self._held
        for key, count in keys.items():
            _change(tenants, tenant_of(key), sign * count)
            _change(inside, key, sign * count)
        return keys.items()

    def _column(self, trigger: Trigger) -> Hashable:
        """Return the column that a trigger may be read apart with. The store shows which trigger of
        an ordering key comes next."""
        return None if trigger.ordering_key is not None else self._column_of(trigger)

    def set_apart(
        self, column: Hashable, triggers: Sequence[Trigger], most: int
    ) -> tuple[Sequence[Trigger], dict[Feed, int]]:
        """Read a column apart. `triggers`: those in memory, the first ones first, of which `most`
        stay. Return the others, which leave memory, and their positions as `keep` does."""
        name = triggers[0].name
        if column not in self._apart:
            apart = self._apart[column] = self._new_apart(name, max(1, most))
            apart.held = len(triggers)
            self.held -= len(triggers)
        left: dict[Feed, int] = {}
        for trigger in triggers[most:]:
            feed = Feed(self.key(trigger), name)
            left[feed] = min(left.get(feed, trigger.seq), trigger.seq - 1)
            self._feeds[feed] = column
        self.left(triggers[most:])
        return triggers[most:], left

    def _new_apart(self, name: str, most: int) -> _Apart:
        return _Apart(self._flows, self._held, name, most)

    def columns_changed(self) -> None:
        """Note that triggers have other columns now: nothing is read apart."""
        self.held = self.size
        self._apart.clear()
        self._feeds.clear()

    # unread rows ----------------------------------------------------------------------------------

    def remember(self, announced: Iterable[str], found: Sequence[Feed]) -> None:
        """Remember unread rows: those of keys of which all are new, and others."""
        is_crowded = len(found) + len(self._unread) > FEW
        for key in announced:
            if self._goes_ahead(key):
                self._new[key] = None
            else:
                self._unread.add(key, is_spread=False)
        for feed in found:
            unread = self._unread
            if feed.name:
                column = self._feeds.setdefault(feed, feed)
                if column not in self._apart:  # it is no longer apart, but its rows are unread
                    column = self._feeds[feed] = feed
                    self._apart.setdefault(feed, self._new_apart(feed.name, self.full))
                unread, self._may_ask = self._apart[column], True
            unread.add(feed.key, is_spread=is_crowded)

    def _goes_ahead(self, key: str) -> bool:
        """Return whether a key with new rows goes ahead of others: it is due, in its tenant if that
        is in memory, and not too many have gone ahead."""
        flows, tenant = self._flows, tenant_of(key)
        group, name = flows.tenants, tenant
        flow = flows.flows.get(tenant)
        if tenant != key and tenant in self._held.tenants and isinstance(flow, TenantFlow):
            group, name = flow.keys, key
        return group.tag(name, 0) <= group.time.now and len(self._new) < group.time.early

    def reweigh(self, keys: Iterable[str]) -> None:
        """Let new weights of these keys count in the order of reads."""
        for key in keys:
            for unread in (self._unread, *self._apart.values()):
                unread.reweigh(key)

    # the choice -----------------------------------------------------------------------------------

    @property
    def full(self) -> int:
        """Triggers up to which memory is filled once it is half empty."""
        return max(1, self.capacity * 3 // 4)

    @property
    def most(self) -> int:
        """Triggers that memory holds at most."""
        return self.capacity + max(1, self.capacity // 4)

    @property
    def is_asking(self) -> bool:
        """Whether to ask for rows, because memory is half empty, or has room for some that are
        due."""
        if self._may_ask and self.held < self.most:
            self._may_ask = any(apart.is_asking for apart in self._apart.values())
            if self._may_ask:
                return True
        if self._new and self.held < self.most:
            return True
        if self.held <= self.capacity // 2:
            return len(self._unread) > 0 or not self.is_fair
        first = self._unread.first()
        spare = self.capacity // 16
        return first is not None and self.held < self._most(first[0], is_low=False) - spare

    def _most(self, tag: int, is_low: bool) -> int:
        """Return up to how many triggers memory takes for an older row with this tag."""
        if tag <= self._flows.time.now:
            return self.capacity
        return self.full if is_low else 0

    def choose(self, unread: int, coming: int) -> list[tuple[Feed, int]]:
        """Return which rows to read next. `unread`: number of tenants with unread rows, as far as
        known. `coming`: rows that were asked for and have not come."""
        if not coming:
            self._settle()
        chosen = Counter[Feed]()
        held, is_low = self.held + coming, self.held + coming <= self.capacity // 2
        total = max(1.0, self._unread.weight, unread)
        while self._new and held < self.most:
            key = next(iter(self._new))
            del self._new[key]
            number = self.full * self._flows.tenants.rate(tenant_of(key)) / total
            rows = self._unread.ask(key, number, self.most - held)
            chosen[Feed(key)] += rows
            held += rows
        while (first := self._unread.first()) is not None:
            tag, tenant = first
            if held >= self._most(tag, is_low):
                break
            number = self.full * self._flows.tenants.rate(tenant) / total
            key, rows = self._unread.take(tag, tenant, number, self.most - held)
            chosen[Feed(key)] += rows
            held += rows
        if not self._may_ask or held >= self.most:
            return [*chosen.items()]
        for apart in self._apart.values():
            inside = apart.held if apart.is_asking else apart.most
            while inside < apart.most and (first := apart.first()) is not None:
                share = self._flows.tenants.rate(first[1]) / apart.weight
                key, rows = apart.take(*first, apart.most * share, apart.most - inside)
                chosen[Feed(key, apart.name)] += rows
                inside += rows
        return [*chosen.items()]

    def _settle(self) -> None:
        """Note that all rows that were asked for have come, or do not exist. Columns without unread
        rows are no longer read apart, if the triggers of all take half of memory at most."""
        if self.is_open:
            self._flows.tenants.starts.clear()
        for unread in (self._unread, *self._apart.values()):
            unread.settle()
        read = {column: one for column, one in self._apart.items() if not len(one)}
        count = sum(apart.held for apart in read.values())
        if read and self.held + count <= self.capacity // 2:
            self._apart = {column: one for column, one in self._apart.items() if column not in read}
            self.held += count
            self._feeds = {feed: of for feed, of in self._feeds.items() if of in self._apart}


def _change(counts: dict[str, int], name: str, change: int) -> None:
    if now := counts.get(name, 0) + change:
        counts[name] = now
    else:
        del counts[name]
