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


class UnreadKeys:
    """Keys that the channel has offered and the lane has not asked for since. A key may be here
    twice."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._heap: list[tuple[int, str, bool]] = []
        """(next pass or less, name, whether the name is that of a tenant with keys of its own)."""
        self._keys: dict[str, list[tuple[int, str]]] = {}
        """Heap of (next turn or less, key) by tenant."""

    def add(self, keys: Iterable[str], start: int = -1) -> None:
        """Add keys. `start`: virtual time from which the turns of idle tenants are spread over one
        step. At one pass, a tenant of a greater weight would wait for a turn of each other."""
        for key in keys:
            tenant = tenant_of(key)
            if tenant == key:
                heappush(self._heap, (self._passes.spread(key, 1.0, start), key, False))
                continue
            found = self._keys.get(tenant)
            if found is None:
                found = self._keys[tenant] = []
                heappush(self._heap, (self._passes.spread(key, 1.0, start), tenant, True))
            heappush(found, (self._passes.turn(key), key))

    def bring_forward(self, tenants: Iterable[str]) -> None:
        """Move tenants whose next pass has gone back."""
        for tenant in tenants:
            heappush(self._heap, (self._passes.next_pass(tenant), tenant, tenant in self._keys))

    @property
    def due_at(self) -> int | None:
        """Lowest next pass; None if there is no key."""
        heap = self._heap
        while heap:
            pass_, name, is_tenant = heap[0]
            if is_tenant and name not in self._keys:
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
            keys = self._keys[name]
            key = self._first(keys)
            number = number_of(key, len(keys) + 1)
            if keys:
                after = max(start, pass_) + number * self._passes.step(key, 1.0)
                heappush(self._heap, (after, name, True))
            else:
                del self._keys[name]
            yield key, number

    def _first(self, keys: list[tuple[int, str]]) -> str:
        """Remove and return the key of a tenant whose turn is next."""
        while True:
            turn, key = keys[0]
            now = self._passes.turn(key)
            if now <= turn:
                heappop(keys)
                return key
            heapreplace(keys, (now, key))
