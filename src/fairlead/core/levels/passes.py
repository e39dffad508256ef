"""Passes by start-time fair queueing: each tenant advances by its stride for every task, and the
lowest pass goes first. A key that is no path is a tenant (`fairlead.core.fair.tenants`).

Goyal, Vin and Cheng 1996, "Start-time Fair Queuing". For tenants that stay backlogged, served
counts divided by weight never differ by more than 1/w_f + 1/w_m tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairlead.core.fair.strides import STRIDE_SCALE, step
from fairlead.core.fair.tenants import tenant_weight
from fairlead.core.levels.counters import Counters
from fairlead.model import tenant_of

if TYPE_CHECKING:
    from fairlead.core.fair.run_times import RunTimes


class Passes:
    """Gives each task of a lane its pass: the later of the lane's virtual time and the next pass of
    the tenant."""

    def __init__(
        self,
        counters: Counters,
        weights: Mapping[str, float] | None = None,
        run_times: RunTimes | None = None,
    ) -> None:
        """`run_times`: charge each task its expected run time; None charges all the same. Levels
        keep the expectation that they were given with; the order in memory corrects it."""
        self._counters = counters
        self._run_times = run_times
        # Keep an empty mapping too: weights set later are added to the same object.
        self.weights: Mapping[str, float] = {} if weights is None else weights
        """Weights set at run time, by key, which replace the weights of tasks."""

    def assign(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        """Return the pass of one more task of the key. `weight`, `name`: of the task."""
        tenant = tenant_of(key)
        pass_ = self._counters.next_pass(tenant)
        if pass_ < virtual_time:
            pass_ = virtual_time
        charge = self._charge(key, name)
        after = pass_ + step(charge, tenant_weight(self.weights, tenant, key, weight))
        self._counters.put(tenant, after, virtual_time)
        return pass_

    def _charge(self, key: str, name: str) -> int:
        return STRIDE_SCALE if self._run_times is None else self._run_times.charge(name, key)

    def step(self, key: str, weight: float, name: str = "") -> int:
        """Return the virtual time from one task of the key to the next of its tenant
        (dimensionless)."""
        return step(self._charge(key, name), self._weight(key, weight))

    def _weight(self, key: str, weight: float) -> float:
        return tenant_weight(self.weights, tenant_of(key), key, weight)

    def observe(
        self, key: str, weight: float, pass_: int, virtual_time: int, name: str = ""
    ) -> None:
        """Advance the tenant's next pass beyond a task that an earlier owner has given this pass.
        `name`: of the task; empty for the last of several."""
        self._raise(key, pass_ + self.step(key, weight, name), virtual_time)

    def _raise(self, key: str, next_pass: int, virtual_time: int) -> None:
        tenant = tenant_of(key)
        if next_pass > self._counters.next_pass(tenant):
            self._counters.put(tenant, next_pass, virtual_time)

    def next_pass(self, key: str) -> int:
        """Return the next pass of the key's tenant, or more; 0 if it is unknown."""
        return self._counters.next_pass(tenant_of(key))

    def resume(self, key: str, next_pass: int) -> None:
        """Let the next pass of the key's tenant be no less than `next_pass`."""
        self._raise(key, next_pass, 0)

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
