"""Tenants: fairness keys may be paths, and the keys of one tenant share what the tenant gets.

A key "acme/user-7" belongs to the tenant "acme" (`fairlead.model.tenant_of`). Hierarchical
start-time fair queueing (Goyal, Vin and Cheng 1996, section 3): shares go to tenants first, and
inside a tenant to its keys, by a virtual time of the tenant. A key that is no path is a tenant of
its own, and one of its keys if others are paths.
"""

from __future__ import annotations

from collections.abc import Mapping

MOST_TURNS = 50_000
"""Keys of tenants whose next turns a lane keeps. Beyond it, those least ahead in their tenants are
dropped, and may be read a turn sooner."""


def tenant_weight(weights: Mapping[str, float], tenant: str, key: str, weight: float) -> float:
    """Return the weight of a tenant among tenants: the one in `weights`, which are set at run time,
    or that of the task, `weight`, if its key is no path, else 1."""
    found = weights.get(tenant)
    if found is not None:
        return found
    return weight if key == tenant else 1.0


def key_weight(weights: Mapping[str, float], tenant: str, key: str, weight: float) -> float:
    """Return the weight of a key among the keys of its tenant: the one in `weights`, which are set
    at run time, or that of the task, `weight`. A key that is no path has 1, because its weight is
    that of the tenant."""
    return 1.0 if key == tenant else weights.get(key, weight)


class Turns:
    """Order in which the keys of each tenant are read: start-time fair queueing inside the tenant,
    in which a trigger is served when it gets its level."""

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        """Virtual time by tenant: the start of the last turn."""
        self._next: dict[str, dict[str, int]] = {}
        """Next turn by tenant and key."""
        self._size = 0

    def count(self, tenant: str, key: str, step: int) -> None:
        """Count a trigger of a key. `step`: virtual time of the tenant from it to the next one."""
        turns = self._next.get(tenant)
        if turns is None:
            if key == tenant:
                return  # the tenant has no other keys
            turns = self._next[tenant] = {}
        now = self._now.get(tenant, 0)
        before = turns.get(key)
        self._size += before is None
        start = self._now[tenant] = now if before is None else max(now, before)
        turns[key] = start + step
        if self._size > MOST_TURNS:
            self._tidy()

    def next_of(self, tenant: str, key: str) -> int:
        """Return the virtual time of the tenant at which the next turn of the key comes."""
        return self._now.get(tenant, 0) + self.ahead(tenant, key)

    def ahead(self, tenant: str, key: str) -> int:
        """Return the virtual time of the tenant until the next turn of the key; 0 if it is due."""
        turns = self._next.get(tenant)
        return 0 if turns is None else max(0, turns.get(key, 0) - self._now.get(tenant, 0))

    def _tidy(self) -> None:
        """Drop keys that are due, and those least ahead if there are still many."""
        ahead = sorted(
            (self.ahead(tenant, key), tenant, key)
            for tenant, turns in self._next.items()
            for key in turns
        )
        kept = [each for each in ahead if each[0]][-MOST_TURNS // 2 :]
        before, self._next = self._next, {}
        for _, tenant, key in kept:
            self._next.setdefault(tenant, {})[key] = before[tenant][key]
        self._now = {tenant: self._now[tenant] for tenant in self._next}
        self._size = len(kept)
