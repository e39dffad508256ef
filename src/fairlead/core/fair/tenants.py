"""Tenants: fairness keys may be paths, and the keys of one tenant share what the tenant gets.

A key "acme/user-7" belongs to the tenant "acme" (`fairlead.model.tenant_of`). Hierarchical
start-time fair queueing (Goyal, Vin and Cheng 1996, section 3): shares go to tenants first, and
inside a tenant to its keys, by a virtual time of the tenant. A key that is no path is a tenant of
its own, and one of its keys if others are paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

MOST_TURNS = 50_000
"""Keys of tenants whose next turns a lane keeps. Beyond it, those least ahead in their tenants are
dropped, and may be read a turn sooner."""

FIRST_KEYS = 50
"""Number of keys of a tenant among the first triggers of a long lane that are not spread."""


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
    """Order in which the keys of each tenant are read: start-time fair queueing inside the tenant.

    Triggers of a key are read together when its turn comes, and each moves the next turn one stride
    on when it gets its level. The first turns of keys that wait are spread over one stride.
    """

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        """Virtual time by tenant: the latest turn taken."""
        self._lost = 0
        """Virtual time of tenants not in `_now`, so that none of them goes back."""
        self._next: dict[str, dict[str, int]] = {}
        """Next turn by tenant and key."""
        self._size = 0
        self.taken: dict[str, int] = {}
        """Turn at which each key was last read, oldest first. A key that is not here starts at the
        virtual time of its tenant."""

    def count(self, tenant: str, key: str, step: int) -> None:
        """Count a trigger of a key. `step`: virtual time of the tenant from it to the next one.
        Skip it for a key that is a tenant without other keys: see `has`."""
        turns = self._next.get(tenant)
        if turns is None:
            turns = self._next[tenant] = {}
        now = self.now(tenant)
        before = turns.get(key)
        self._size += before is None
        turns[key] = (now if before is None else max(now, before)) + step
        if self._size > MOST_TURNS:
            self._tidy()

    def now(self, tenant: str) -> int:
        """Return the virtual time of the tenant."""
        return self._now.get(tenant, self._lost)

    def has(self, tenant: str) -> bool:
        """Return whether the turns of keys of a tenant are kept."""
        return tenant in self._next

    def next_of(self, tenant: str, key: str) -> int:
        """Return the next turn of the key; 0 if it is unknown."""
        turns = self._next.get(tenant)
        return 0 if turns is None else turns.get(key, 0)

    def ahead(self, tenant: str, key: str) -> int:
        """Return the virtual time of the tenant until the next turn of the key; 0 if it is due."""
        return max(0, self.next_of(tenant, key) - self.now(tenant))

    def take(self, tenant: str, key: str, turn: int) -> bool:
        """Record that a key is read at its turn; return whether this moves the virtual time of the
        tenant."""
        self._take(key, turn)
        if turn <= self.now(tenant):
            return False
        self._now[tenant] = turn
        return True

    def spread(self, tenant: str, key: str, phase: int) -> None:
        """Let the first turn of a key that comes before its turn, in the order of arrival, come
        `phase` after the virtual time of its tenant. The first FIRST_KEYS of a tenant do not
        wait."""
        turns = self._next.setdefault(tenant, {})
        if key in turns or key in self.taken:
            return
        turn = self.now(tenant) + (phase if len(turns) >= FIRST_KEYS else 0)
        self._take(key, turn)
        turns[key] = turn
        self._size += 1

    def _take(self, key: str, turn: int) -> None:
        self.taken.pop(key, None)
        self.taken[key] = turn
        if len(self.taken) > MOST_TURNS:
            for old in [*islice(self.taken, MOST_TURNS // 2)]:
                del self.taken[old]

    def bring_forward(self, tenant: str, key: str, step: int) -> None:
        """Let the next turn of a key come at most `step` after the virtual time of its tenant."""
        if self.ahead(tenant, key) > step:
            self._next[tenant][key] = self.now(tenant) + step

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
        now, self._now = self._now, {}
        for tenant, time in now.items():
            if tenant in self._next:
                self._now[tenant] = time
            else:
                self._lost = max(self._lost, time)
        self._size = len(kept)
