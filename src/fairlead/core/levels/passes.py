"""Passes by start-time fair queueing: each tenant advances by its stride for every task, and the
lowest pass goes first. A key that is no path is a tenant (`fairlead.core.fair.tenants`).

Goyal, Vin and Cheng 1996, "Start-time Fair Queuing". For tenants that stay backlogged, served
counts divided by weight never differ by more than 1/w_f + 1/w_m tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.core.fair.strides import stride
from fairlead.core.fair.tenants import tenant_weight
from fairlead.core.levels.counters import Counters
from fairlead.model import tenant_of


class Passes:
    """Gives each task of a lane its pass: the later of the lane's virtual time and the next pass of
    the tenant."""

    def __init__(self, counters: Counters, weights: Mapping[str, float] | None = None) -> None:
        self._counters = counters
        # Keep an empty mapping too: weights set later are added to the same object.
        self.weights: Mapping[str, float] = {} if weights is None else weights
        """Weights set at run time, by key, which replace the weights of tasks."""

    def assign(self, key: str, weight: float, virtual_time: int) -> int:
        """Return the pass of one more task of the key. `weight`: of the task."""
        tenant = tenant_of(key)
        pass_ = max(self._counters.next_pass(tenant), virtual_time)
        self._counters.put(tenant, pass_ + self.step(key, weight), virtual_time)
        return pass_

    def step(self, key: str, weight: float) -> int:
        """Return the virtual time from one task of the key to the next of its tenant
        (dimensionless)."""
        return stride(tenant_weight(self.weights, tenant_of(key), key, weight))

    def observe(self, key: str, weight: float, pass_: int, virtual_time: int) -> None:
        """Advance the tenant's next pass beyond a task that an earlier owner has given this
        pass."""
        self.resume(key, pass_ + self.step(key, weight), virtual_time)

    def resume(self, key: str, next_pass: int, virtual_time: int = 0) -> None:
        """Let the next pass of the key's tenant be no less than `next_pass`."""
        tenant = tenant_of(key)
        if next_pass > self._counters.next_pass(tenant):
            self._counters.put(tenant, next_pass, virtual_time)

    def heaviest(
        self, most: int, unstored: Iterable[tuple[str, int]] = ()
    ) -> list[tuple[str, int]]:
        """Return (tenant, next pass) of the tenants furthest ahead, to save for the next owner.

        `unstored`: (key, pass) of tasks whose levels end with this owner. The next owner levels
        them again, so their tenants are not charged for them.
        """
        first: dict[str, int] = {}
        for key, pass_ in unstored:
            tenant = tenant_of(key)
            first[tenant] = min(pass_, first.get(tenant, pass_))
        kept = [
            (key, min(next_pass, first.get(key, next_pass)))
            for key, next_pass in self._counters.heaviest(most)
        ]
        return sorted(kept, key=lambda pair: (-pair[1], pair[0]))
