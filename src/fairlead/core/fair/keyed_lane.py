"""A fair lane whose rows are read by fairness key: which keys to read next, and how many rows of
each, so that memory holds the triggers that come first.

Nothing is stored about the order. A tenant has a start tag and a number of triggers in memory, so
the tag that its next row would get is known: `tag + stride * held` (start-time fair queueing,
Goyal, Vin and Cheng 1996). Rows are read in the order of these tags, in proportion to the weights.
Inside a tenant the same holds for its keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from fairlead.core.fair.passes import STRIDE_SCALE, phase, step
from fairlead.core.fair.tag_heap import TagHeap
from fairlead.core.triggers.flows import FEW, FairLane, TenantFlow
from fairlead.model import Trigger, tenant_of

MOST_OF_KEY = 2000
"""Maximum number of rows of one key in one read."""


class KeyedLane:
    """Counts of the triggers of one lane in memory, and the keys with rows that are not there."""

    def __init__(self, flows: FairLane) -> None:
        self._flows = flows
        self.capacity = 1
        """Triggers in memory, but up to a quarter more for tenants that are due."""
        self.held = 0
        """Triggers in memory that have not started."""
        self._held: Counter[str] = Counter()
        """The same by tenant, and by key that is a path."""
        self._unread = TagHeap(self._tag, flows.rate)
        """Tenants with unread rows."""
        self._inside: dict[str, TagHeap] = {}
        """Keys with unread rows by tenant that has paths."""
        self._new: set[str] = set()
        """Tenants and keys of which a row came that was announced, until they are read."""
        self._reach = 0
        """Highest tag of a row that was asked for."""

    # triggers come and go -------------------------------------------------------------------------

    def came(self, triggers: Iterable[Trigger]) -> None:
        """Count triggers that came into memory."""
        for key, rows in self._count(triggers, 1):
            tenant = tenant_of(key)
            self._unread.came(tenant, rows)
            if (inside := self._inside.get(tenant)) is not None:
                inside.came(key, rows)

    def left(self, triggers: Iterable[Trigger]) -> None:
        """Count triggers that left memory: they started, or were dropped."""
        self._count(triggers, -1)

    def _count(self, triggers: Iterable[Trigger], sign: int) -> Iterable[tuple[str, int]]:
        """Count triggers that came or left; return their number by key."""
        held, keys = self._held, Counter([trigger.fairness_key for trigger in triggers])
        for key, count in keys.items():
            self.held += sign * count
            tenant = tenant_of(key)
            for name in (tenant,) if tenant == key else (tenant, key):
                held[name] += sign * count
                if not held[name]:
                    del held[name]
        return keys.items()

    def _tag(self, tenant: str, asked: int) -> int:
        return self._flows.tag(tenant, self._held.get(tenant, 0) + asked)

    # unread rows ----------------------------------------------------------------------------------

    def remember(self, announced: Iterable[str], found: Collection[str]) -> None:
        """Remember keys with unread rows, `announced` those of new rows. The first ranks of the
        others are spread over one stride if they are many: at one rank, a key of a great weight
        would wait for a row of each other."""
        self._flows.beginners.is_crowded = len(found) + len(self._unread) > FEW
        for key in announced:
            self._add(key, is_new=True)
        for key in found:
            self._add(key, is_new=False)

    def _add(self, key: str, is_new: bool) -> None:
        flows, tenant = self._flows, tenant_of(key)
        inside = self._inside.get(tenant)
        if inside is None and tenant != key:
            inside = self._inside[tenant] = self._open(tenant)
        if inside is not None:
            now, _ = flows.member(tenant, key)
            inside.add(key, now if is_new else self._start_inside(tenant, key))
        if is_new:
            self._new.add(key)
            if tenant not in self._unread:
                self._new.add(tenant)
        if is_new:
            self._unread.add(tenant, -1 if flows.time.early else flows.time.now)
        else:
            is_spread = flows.beginners.is_crowded
            self._unread.add(tenant, self._start(tenant) if is_spread else flows.time.now)

    def _open(self, tenant: str) -> TagHeap:
        """Return the keys of a tenant that has a path: its own key, if that is unread."""
        flows, held = self._flows, self._held
        inside = TagHeap(
            lambda key, asked: flows.tag_inside(tenant, key, held.get(key, 0) + asked),
            lambda key: flows.rate_inside(tenant, key),
        )
        if tenant in self._unread:
            inside.add(tenant, 0)
        return inside

    def _start(self, tenant: str) -> int:
        """Return a tag for the next row of a tenant that waited: less than a stride after the
        virtual time."""
        stride = step(STRIDE_SCALE, self._flows.rate(tenant))
        return self._flows.time.now + phase(tenant, stride)

    def _start_inside(self, tenant: str, key: str) -> int:
        """Return the same for a key inside its tenant."""
        now, _ = self._flows.member(tenant, key)
        return now + phase(key, step(STRIDE_SCALE, self._flows.rate_inside(tenant, key)))

    def reweigh(self, keys: Collection[str]) -> None:
        """Move keys whose weights have changed: the next row of each comes a stride after the
        virtual time at most."""
        for key in keys:
            tenant = tenant_of(key)
            if tenant == key:
                self._unread.reweigh(key, self._start(key))
            if (inside := self._inside.get(tenant)) is not None:
                inside.reweigh(key, self._start_inside(tenant, key))

    # the choice -----------------------------------------------------------------------------------

    @property
    def is_asking(self) -> bool:
        """Whether to ask for keys to read, because memory is half empty, or has room for rows that
        are soon due."""
        if self.held <= self.capacity // 2:
            return len(self._unread) > 0
        if (first := self._unread.first(self._flows.time.now)) is None:
            return False
        spare = 0 if first[1] in self._new else self.capacity // 16
        return self.held < self._most(*first, is_low=False) - spare

    @property
    def full(self) -> int:
        """Triggers up to which memory is filled once it is half empty."""
        return max(1, self.capacity * 3 // 4)

    @property
    def most(self) -> int:
        """Triggers that memory holds at most."""
        return self.capacity + max(1, self.capacity // 4)

    def _most(self, tag: int, tenant: str, is_low: bool) -> int:
        """Return up to how many triggers memory takes for the next row of a tenant, with this
        tag."""
        now = self._flows.time.now
        if tenant in self._new and tag <= now:
            return self.most
        if tag <= max(now, (now + self._reach) // 2):
            return self.capacity
        return self.full if is_low else 0

    def choose(self, unread: int, coming: int) -> list[tuple[str, int]]:
        """Return which keys to read next, and how many rows of each at most. `unread`: number of
        tenants with unread rows, as far as known. `coming`: rows that were asked for and have not
        come."""
        if not coming:
            self._settle()
        held, chosen = self.held + coming, Counter[str]()
        is_low = held <= self.capacity // 2
        now = self._flows.time.now
        while (first := self._unread.first(now)) is not None:
            tag, tenant = first
            if held >= self._most(tag, tenant, is_low):
                break
            share = self._flows.rate(tenant) / max(self._unread.total, unread)
            number = _rounded(self.full * share, min(MOST_OF_KEY, self.most - held))
            key, number = self._take(tenant, tag, number)
            chosen[key] += number
            held += number
        return [*chosen.items()]

    def _take(self, tenant: str, tag: int, number: int) -> tuple[str, int]:
        """Remove the next key of a tenant, which gets this tag; return it, and how many of the
        `number` rows of the tenant are of it."""
        flows, inside, key = self._flows, self._inside.get(tenant), tenant
        if inside is not None:
            flow = flows.flows.get(tenant)
            found = inside.first(flows.member(tenant, tenant)[0])
            assert found is not None
            start, key = found
            number = _rounded(number * flows.rate_inside(tenant, key) / inside.total, number)
            inside.ask(key, number)
            if isinstance(flow, TenantFlow):
                flow.beginners.is_crowded = len(inside) > FEW
                if key not in self._new:
                    flow.beginners.starts[key] = start
        if tenant not in self._new:
            flows.beginners.starts[tenant] = tag
        self._new.difference_update((tenant, key))
        self._unread.ask(tenant, number)
        self._reach = max(self._reach, self._tag(tenant, self._unread.asked(tenant)))
        if inside:
            self._unread.add(tenant, tag)
        return key, number

    def _settle(self) -> None:
        """Note that all rows that were asked for have come."""
        self._unread.settle()
        self._flows.beginners.starts.clear()
        for tenant, inside in [*self._inside.items()]:
            inside.settle()
            if not inside:
                del self._inside[tenant]


def _rounded(number: float, most: int) -> int:
    """Return a number of rows, at least 1: one of a few, so that many keys are read together."""
    return max(1, min(most, 1 << max(1, int(number)).bit_length() - 1))
