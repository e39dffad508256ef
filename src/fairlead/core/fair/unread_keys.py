"""Fairness keys of a lane with triggers that the channel keeps, by the virtual time at which the
next of these triggers is due.

A heap holds each key at its next pass. The next pass of a key grows when its triggers get levels,
so a key found first may be due later: it goes back. Finding a key costs O(log keys) amortised. The
keys of a tenant are in the heap together, and the tenant has a heap of their turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.fair.passes import Passes
from fairlead.model import tenant_of

EARLY_KEYS = 100
"""Number of new keys of a tenant that go ahead of its keys that wait, beyond one for each of these
that is read."""


class _Tenant:
    """Keys of one tenant."""

    __slots__ = ("early", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, str]] = []
        """(next turn or less, key)."""
        self.early = EARLY_KEYS
        """Number of new keys that may still go ahead of the others."""


class UnreadKeys:
    """Keys that the channel has offered and the lane has not asked for since. A key may be here
    twice."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._heap: list[tuple[int, str, bool]] = []
        """(next pass or less, name, whether the name is that of a tenant with keys of its own)."""
        self._tenants: dict[str, _Tenant] = {}

    def add(self, keys: Iterable[str], start: int = -1) -> None:
        """Add keys. `start`: virtual time from which the turns of idle tenants are spread over one
        step, and the turns of keys in their tenants likewise; -1 for keys of new triggers. At one
        pass, a tenant or key of a greater weight would wait for a turn of each other."""
        for key in keys:
            name = tenant_of(key)
            if name == key:
                heappush(self._heap, (self._passes.spread(key, 1.0, start), key, False))
                continue
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = self._tenants[name] = _Tenant()
                heappush(self._heap, (self._passes.spread(key, 1.0, start), name, True))
            is_early = start < 0 and tenant.early > 0
            tenant.early -= is_early
            heappush(tenant.heap, (self._passes.first_turn(key, is_early), key))

    def bring_forward(self, names: Iterable[str]) -> None:
        """Move tenants whose next pass has gone back, and keys of tenants whose next turn has."""
        for name in names:
            tenant = self._tenants.get(tenant_of(name))
            if tenant_of(name) == name:
                heappush(self._heap, (self._passes.next_pass(name), name, tenant is not None))
            elif tenant is not None:
                heappush(tenant.heap, (self._passes.first_turn(name, is_early=False), name))

    @property
    def due_at(self) -> int | None:
        """Lowest next pass; None if there is no key."""
        heap = self._heap
        while heap:
            pass_, name, is_tenant = heap[0]
            if is_tenant and name not in self._tenants:
                heappop(heap)
                continue
            now = self._passes.next_pass(name)
            if now <= pass_:
                return pass_
            heapreplace(heap, (now, name, is_tenant))
        return None

    def take(
        self, start: int, through: int | None, number_of: Callable[[str, int], int]
    ) -> Iterator[tuple[str, int]]:
        """Remove and yield keys with the number of triggers to read, lowest next pass first, as
        long as that is at or before `through`. `start`: virtual time. `number_of`: returns the
        number for a key and the number of keys of its tenant."""
        while (pass_ := self.due_at) is not None and (through is None or pass_ <= through):
            _, name, is_tenant = heappop(self._heap)
            if pass_ > start:
                self._passes.resume(name, pass_)  # for the level of its next trigger
            if not is_tenant:
                yield name, number_of(name, 1)
                continue
            tenant = self._tenants[name]
            key = self._first(tenant)
            number = number_of(key, len(tenant.heap) + 1)
            if tenant.heap:
                after = max(start, pass_) + number * self._passes.step(key, 1.0)
                heappush(self._heap, (after, name, True))
            else:
                del self._tenants[name]
            yield key, number

    def _first(self, tenant: _Tenant) -> str:
        """Remove and return the key of a tenant whose turn is next."""
        heap = tenant.heap
        while True:
            turn, key = heap[0]
            now = self._passes.turn(key)
            if now > turn:
                heapreplace(heap, (now, key))
                continue
            heappop(heap)
            if self._passes.take_turn(key, turn):
                tenant.early = min(tenant.early + 1, EARLY_KEYS)
            return key
