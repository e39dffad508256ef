"""Fairness keys of a lane with rows that are not in memory, by the order in which they come.

A tenant has a start tag and a number of triggers in memory, so the tag that its next row would get
is known: `tag + stride * held` (start-time fair queueing, Goyal, Vin and Cheng 1996). Inside a
tenant the same holds for its keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.fair.passes import STRIDE_SCALE, phase, step
from fairlead.core.fair.tag_heap import TagHeap
from fairlead.core.triggers.flows import FEW, FairLane, TenantFlow
from fairlead.model import tenant_of

MOST_OF_KEY = 2000
"""Maximum number of rows of one key in one read."""


class UnreadRows:
    """The keys. A key leaves when its rows are asked for."""

    def __init__(self, flows: FairLane, held: Mapping[str, int]) -> None:
        """`held`: number of triggers in memory by tenant, and by key that is a path."""
        self._flows = flows
        self._held = held
        self._tenants = TagHeap(self._tag, flows.rate)
        self._inside: dict[str, TagHeap] = {}
        """Keys by tenant that has paths."""
        self.least: dict[str, int] = {}
        """Rows to read at least, by key."""
        self._new: set[str] = set()
        """Tenants and keys with new rows, until these are asked for."""

    def __len__(self) -> int:
        """Return the number of tenants."""
        return len(self._tenants)

    @property
    def weight(self) -> float:
        """Sum of the weights of the tenants here, and of those whose rows are on their way."""
        return self._tenants.total

    def is_new(self, tenant: str) -> bool:
        """Return whether all rows of a tenant are new."""
        return tenant in self._new

    def _tag(self, tenant: str, asked: int) -> int:
        return self._flows.tag(tenant, self._held.get(tenant, 0) + asked)

    def tag(self, tenant: str) -> int:
        """Return the tag of a tenant's next row after those that are on their way."""
        return self._tag(tenant, self._tenants.asked(tenant))

    def add(self, key: str, *, is_new: bool, is_spread: bool) -> None:
        """Add a key with unread rows. `is_new`: all of them are new. `is_spread`: they are older,
        and many: the first tags of such keys are spread over one stride. At one tag, a key of a
        great weight would wait for a row of each other."""
        flows, tenant = self._flows, tenant_of(key)
        inside = self._inside.get(tenant)
        if inside is None and tenant != key:
            inside = self._inside[tenant] = self._open(tenant)
        if inside is not None:
            now, _ = flows.member(tenant, key)
            inside.add(key, now if is_new else self._start_inside(tenant, key))
        if is_new:
            self._new.add(key)
            if tenant not in self._tenants:
                self._new.add(tenant)
            start = -1 if flows.time.early else flows.time.now
        else:
            start = self._start(tenant) if is_spread else flows.time.now
        self._tenants.add(tenant, start)

    def _open(self, tenant: str) -> TagHeap:
        """Return the keys of a tenant that has a path: its own key, if that is unread."""
        flows, held = self._flows, self._held
        inside = TagHeap(
            lambda key, asked: flows.tag_inside(tenant, key, held.get(key, 0) + asked),
            lambda key: flows.rate_inside(tenant, key),
        )
        if tenant in self._tenants:
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

    def reweigh(self, key: str) -> None:
        """Let a new weight of a key count: its next row comes a stride after the virtual time at
        most."""
        tenant = tenant_of(key)
        if tenant == key:
            self._tenants.reweigh(key, self._start(key))
        if (inside := self._inside.get(tenant)) is not None:
            inside.reweigh(key, self._start_inside(tenant, key))

    # the choice -----------------------------------------------------------------------------------

    def first(self) -> tuple[int, str] | None:
        """Return the lowest tag of a next row, and its tenant; None if there is none."""
        return self._tenants.first(self._flows.time.now)

    def take(self, tag: int, tenant: str, number: float, most: int) -> tuple[str, int]:
        """Remove the next key of a tenant, which `first` has returned; return it, and how many rows
        of it to read. `number`: rows of the tenant that memory is to hold. `most`: rows to read at
        most."""
        flows, inside, key = self._flows, self._inside.get(tenant), tenant
        if inside is not None:
            flow = flows.flows.get(tenant)
            found = inside.first(flows.member(tenant, tenant)[0])
            assert found is not None
            start, key = found
            number *= flows.rate_inside(tenant, key) / inside.total
            if isinstance(flow, TenantFlow):
                flow.beginners.is_crowded = len(inside) > FEW
                if key not in self._new:
                    flow.beginners.starts[key] = start
        # One of a few numbers, so that many keys are read together.
        rows = max(1, min(MOST_OF_KEY, most, 1 << max(1, int(number)).bit_length() - 1))
        rows = max(rows, self.least.get(key, 1))
        if tenant not in self._new:
            flows.beginners.starts[tenant] = tag
        self._new.difference_update((tenant, key))
        self._tenants.ask(tenant, rows)
        if inside is not None:
            inside.ask(key, rows)
            if inside:
                self._tenants.add(tenant, tag)
        return key, rows

    def came(self, key: str, rows: int) -> None:
        """Note that so many rows of a key have come."""
        tenant = tenant_of(key)
        self._tenants.came(tenant, rows)
        if (inside := self._inside.get(tenant)) is not None:
            inside.came(key, rows)

    def settle(self) -> None:
        """Note that all rows that were asked for have come, or do not exist."""
        self._tenants.settle()
        for tenant, inside in [*self._inside.items()]:
            inside.settle()
            if not inside:
                del self._inside[tenant]
