"""Fairness keys of a lane with rows that are not in memory, by the order in which they come.

A tenant has a start tag and a number of triggers in memory, so the tag that its next row would get
is known: `tag + stride * held` (start-time fair queueing, Goyal, Vin and Cheng 1996). Inside a
tenant the same holds for its keys.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.core.fair.flows import FairLane
from fairlead.core.fair.tag_heap import TagHeap
from fairlead.model import tenant_of

MOST_OF_KEY = 2000
"""Maximum number of rows of one key in one read."""


class Counts(NamedTuple):
    """Numbers of triggers in memory."""

    tenants: dict[str, int]
    keys: dict[str, int]


class UnreadRows:
    """The keys. A key leaves when its rows are asked for."""

    def __init__(self, flows: FairLane, held: Counts) -> None:
        self._flows = flows
        self._held = held
        self._tenants = TagHeap(lambda: flows.tenants, held.tenants)
        self._inside: dict[str, TagHeap] = {}
        """Keys by tenant that has paths."""

    def __len__(self) -> int:
        """Return the number of tenants."""
        return len(self._tenants)

    @property
    def weight(self) -> float:
        """Sum of the weights of the tenants here, and of those whose rows are on their way."""
        return self._tenants.total

    def add(self, key: str, *, is_spread: bool) -> None:
        """Add a key with unread rows, as `TagHeap.add` does; inside a tenant, always spread."""
        if (inside := self._keys_of(key)) is not None:
            inside.add(key, is_spread=True)
        self._tenants.add(tenant_of(key), is_spread=is_spread)

    def _keys_of(self, key: str) -> TagHeap | None:
        """Return the keys of a key's tenant, made if this is its first path; None for a tenant
        without paths."""
        tenant = tenant_of(key)
        inside = self._inside.get(tenant)
        if inside is None and tenant != key:
            inside = TagHeap(lambda: self._flows.keys(tenant), self._held.keys)
            self._inside[tenant] = inside
            if tenant in self._tenants:
                inside.add(tenant)
        return inside

    def reweigh(self, key: str) -> None:
        """Let a new weight of a key count in the order of reads."""
        tenant = tenant_of(key)
        if tenant == key:
            self._tenants.reweigh(key)
        if (inside := self._inside.get(tenant)) is not None:
            inside.reweigh(key)

    # the choice -----------------------------------------------------------------------------------

    def first(self) -> tuple[int, str] | None:
        """Return the lowest tag of a next row, and its tenant; None if there is none."""
        return self._tenants.first()

    def take(self, tag: int, tenant: str, number: float, most: int) -> tuple[str, int]:
        """Ask for the next key of a tenant, which `first` has returned; return it, and how many
        rows of it to read. `number`: rows of the tenant that memory is to hold. `most`: rows to
        read at most."""
        inside, key = self._inside.get(tenant), tenant
        if inside is not None:
            found = inside.first()
            assert found is not None
            start, key = found
            self._flows.keys(tenant).starts.setdefault(key, start)
        self._flows.tenants.starts.setdefault(tenant, tag)
        return key, self.ask(key, number, most)

    def ask(self, key: str, number: float, most: int) -> int:
        """Ask for a key, which may be new; return how many rows of it to read, as `take` does."""
        tenant = tenant_of(key)
        inside = self._keys_of(key)
        if inside is not None:
            number *= self._flows.keys(tenant).rate(key) / max(1.0, inside.total)
        # One of a few numbers, so that many keys are read together.
        rows = max(1, min(MOST_OF_KEY, most, 1 << max(1, int(number)).bit_length() - 1))
        is_waiting = tenant in self._tenants
        self._tenants.ask(tenant, rows)
        if inside is not None:
            inside.ask(key, rows)
            if is_waiting and inside:
                self._tenants.add(tenant)
        return rows

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
