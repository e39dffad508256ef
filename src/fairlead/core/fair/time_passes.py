"""Passes by run time: a tenant advances by the expected run time of each task
(`fairlead.core.fair.run_times`), divided by its weight.

Levels keep the expectation that they were given with. The order in memory
(`fairlead.core.triggers.accounts`) charges the difference to the time that a run took.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import STRIDE_SCALE, Passes
from fairlead.core.fair.run_times import RunTimes
from fairlead.model import tenant_of

MOST_REMEMBERED = 10_000
"""Maximum number of keys whose last charge is remembered; beyond it, the oldest is dropped."""


class TimePasses(Passes):
    """Passes of one lane by run time. The lanes of a queue may share `run_times`."""

    def __init__(
        self, counters: Counters, weights: Mapping[str, float] | None, run_times: RunTimes
    ) -> None:
        super().__init__(counters, weights)
        self._run_times = run_times
        self._last_charges: dict[str, int] = {}
        """Charge of the last task, at weight 1, by tenant and by key."""

    def assign(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        tenant = tenant_of(key)
        pass_ = max(virtual_time, self._counters.next_pass(tenant))
        charge = self._run_times.charge(name, key)
        self._counters.put(tenant, pass_ + self.step(key, weight, name), virtual_time)
        for of in dict.fromkeys((tenant, key)):
            self._note_charge(of, charge)
        self._count_turn(tenant, key, weight, charge)
        return pass_

    def rate(self, key: str) -> float:
        return self.weight(key) * STRIDE_SCALE / self._last_charges.get(key, STRIDE_SCALE)

    def step(self, key: str, weight: float, name: str = "") -> int:
        return max(1, round(self._run_times.charge(name, key) / self._weight(key, weight)))

    def _note_charge(self, key: str, charge: int) -> None:
        charges = self._last_charges
        charges.pop(key, None)
        charges[key] = charge
        if len(charges) > MOST_REMEMBERED:
            del charges[next(iter(charges))]
