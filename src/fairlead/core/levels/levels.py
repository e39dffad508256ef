"""The levels that one owner gives to the triggers of a lane: a pass, and an id that no other owner
gives.

The pass is the start tag of start-time fair queueing (Goyal, Vin and Cheng 1996): each tenant
advances by its stride for every task, and the lowest pass goes first. For tenants that stay
backlogged, served counts divided by weight never differ by more than 1/w_f + 1/w_m tasks. A key
that is no path is a tenant (`fairlead.core.fair.groups`). Tasks of one tenant get their levels in
the order of arrival, whatever their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from fairlead.core.fair.groups import tenant_weight
from fairlead.core.fair.strides import stride
from fairlead.model import Trigger, tenant_of

FIRST_PASS = 1
"""Pass of the first trigger of a lane: a level of this pass is above `LOWEST`."""

LAST_PASS = 1 << 62
"""Greatest pass, which records and stores can keep. From there on, tasks get their levels in the
order of arrival."""

MOST_TENANTS = 200_000
"""Tenants ahead of the virtual time whose next passes a lane keeps, some 30 MB."""

_ID_BITS = 40
"""Low bits of a level's id, which count within one owner; the high bits are its range id, so that
no two owners give the same id."""


class Levels:
    """The levels of one lane under one owner, and the next pass of each tenant.

    A tenant whose next pass lies behind the virtual time is equivalent to an unknown one and is
    dropped. While more than `most` tenants are ahead, those least ahead are dropped too: such a
    tenant may gain what it was ahead, one stride for a tenant that waits for its turn.
    """

    def __init__(
        self,
        range_id: int,
        virtual_time: int = FIRST_PASS,
        weights: Mapping[str, float] | None = None,
        most: int = MOST_TENANTS,
    ) -> None:
        """`weights`: set at run time, by key; they replace the weights of tasks."""
        self.virtual_time = max(virtual_time, FIRST_PASS)
        """Pass at which a tenant begins that was idle."""
        self.last_id = range_id << _ID_BITS
        """Last id given."""
        self._begun = 0
        """Number of tenants that have begun at this virtual time. Each begins a little later than
        the one before, so that a tenant that comes later does not wait for all of them."""
        self._weights = {} if weights is None else weights
        self._most = most
        self._next: dict[str, int] = {}
        """Next passes by tenant."""

    def assign(self, trigger: Trigger) -> Trigger:
        """Return a new trigger with its level: at the next pass of its tenant, or at the virtual
        time if the tenant was idle."""
        self.last_id += 1
        tenant, step = tenant_of(trigger.fairness_key), self._step(trigger)
        pass_ = self._next.get(tenant, 0)
        if pass_ <= self.virtual_time:
            pass_ = min(self.virtual_time + min(self._begun, step - 1), LAST_PASS)
            self._begun += 1
        self._put(tenant, pass_ + step)
        return trigger.at(pass_, self.last_id)

    def advance(self, virtual_time: int) -> None:
        """Move the virtual time on; it never goes back."""
        if virtual_time > self.virtual_time:
            self.virtual_time, self._begun = virtual_time, 0

    def observe(self, trigger: Trigger) -> None:
        """Advance the next pass of a tenant beyond a trigger that has its level."""
        assert trigger.level is not None
        self.resume(tenant_of(trigger.fairness_key), trigger.level.pass_ + self._step(trigger))

    def resume(self, tenant: str, next_pass: int) -> None:
        """Let the next pass of a tenant be no less than `next_pass`."""
        if next_pass > self._next.get(tenant, 0):
            self._put(tenant, next_pass)

    def next_passes(self, most: int) -> list[tuple[str, int]]:
        """Return (tenant, next pass) of the `most` tenants furthest ahead, furthest first."""
        return nsmallest(most, self._next.items(), key=lambda item: (-item[1], item[0]))

    def _step(self, trigger: Trigger) -> int:
        """Return the virtual time from a task to the next of its tenant (dimensionless)."""
        key = trigger.fairness_key
        return stride(tenant_weight(self._weights, tenant_of(key), key, trigger.weight))

    def _put(self, tenant: str, next_pass: int) -> None:
        self._next[tenant] = min(next_pass, LAST_PASS)
        if len(self._next) <= self._most:
            return
        self._next = {
            each: pass_ for each, pass_ in self._next.items() if pass_ > self.virtual_time
        }
        # Drop half at once, so that sorting costs O(log n) per tenant.
        if len(self._next) > self._most * 3 // 4:
            self._next = dict(self.next_passes(self._most // 2))
