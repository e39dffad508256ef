"""Passes by start-time fair queueing: each tenant advances by its stride for every task, and the
lowest pass goes first. A key that is no path is a tenant (`fairlead.core.fair.tenants`).

Goyal, Vin and Cheng 1996, "Start-time Fair Queuing". For tenants that stay backlogged, served
counts divided by weight never differ by more than 1/w_f + 1/w_m tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.tenants import Turns, key_weight, tenant_weight
from fairlead.model import tenant_of

if TYPE_CHECKING:
    from fairlead.core.fair.run_times import RunTimes

STRIDE_SCALE = 1_000_000

MOST_WEIGHTS = 10_000
"""Keys whose own weights, and last charges, a lane keeps; those of the keys whose tasks came
last."""


@lru_cache(1000)
def stride(weight: float) -> int:
    """Return the virtual time of one task of this weight (dimensionless, >= 1). Waldspurger 1995,
    section 3."""
    # Integers, because the stores compare passes, and floats would compare differently.
    return max(1, round(STRIDE_SCALE / weight))


def step(charge: int, weight: float) -> int:
    """Return the virtual time from a task to the next one. `charge`: of the task at weight 1."""
    return stride(weight) if charge == STRIDE_SCALE else max(1, round(charge / weight))


def phase(key: str, step: int) -> int:
    """Return a virtual time below `step`, by which the first turns of many keys are spread."""
    return crc32(key.encode()) * step >> 32


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
        self._last_charges: dict[str, int] = {}
        """Charge of the last task, at weight 1, by tenant and by key, with `run_times`."""
        # Keep an empty mapping too: weights set later are added to the same object.
        self.weights: Mapping[str, float] = {} if weights is None else weights
        """Weights set at run time, by key, which replace the weights of tasks."""
        self._own_weights: dict[str, float] = {}
        """Weight of the last task by key, of keys whose tasks have other weights than 1; those that
        had one last are last."""
        self._turns = Turns()

    def assign(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        """Return the pass of one more task of the key. `weight`, `name`: of the task."""
        tenant = tenant_of(key)
        pass_ = self._counters.next_pass(tenant)
        if pass_ < virtual_time:
            pass_ = virtual_time
        charge = STRIDE_SCALE if self._run_times is None else self._noted_charge(tenant, key, name)
        after = pass_ + step(charge, tenant_weight(self.weights, tenant, key, weight))
        self._counters.put(tenant, after, virtual_time)
        if weight != 1 or key != tenant or self._own_weights or self._turns.has(tenant):
            self._count_turn(tenant, key, weight, charge)
        return pass_

    def _noted_charge(self, tenant: str, key: str, name: str) -> int:
        charge, charges = self._charge(key, name), self._last_charges
        for of in dict.fromkeys((tenant, key)):
            charges.pop(of, None)
            charges[of] = charge
            if len(charges) > MOST_WEIGHTS:
                del charges[next(iter(charges))]
        return charge

    def _charge(self, key: str, name: str) -> int:
        return STRIDE_SCALE if self._run_times is None else self._run_times.charge(name, key)

    def weight(self, key: str) -> float:
        """Return the weight of the next task of a key, as far as it is known: the one that was set
        at run time, or that of the last task, else 1."""
        found = self.weights.get(key)
        return self._own_weights.get(key, 1.0) if found is None else found

    def rate(self, key: str) -> float:
        """Return how many tasks of a tenant, or of a key in its tenant, run while one of weight 1
        and mean run time does, as far as it is known."""
        return self.weight(key) * STRIDE_SCALE / self._last_charges.get(key, STRIDE_SCALE)

    def _count_turn(self, tenant: str, key: str, weight: float, charge: int) -> None:
        """Count a task in the turns of its tenant. `charge`: its virtual time at weight 1."""
        if weight != 1 or key in self._own_weights:
            self._note_weight(key, weight)
        if key == tenant and not self._turns.has(tenant):
            return  # the tenant has no other keys
        own = key_weight(self.weights, tenant, key, weight)
        self._turns.count(tenant, key, max(1, round(charge / own)))

    def _note_weight(self, key: str, weight: float) -> None:
        weights = self._own_weights
        weights.pop(key, None)
        if weight != 1:
            weights[key] = weight
            if len(weights) > MOST_WEIGHTS:
                del weights[next(iter(weights))]

    def step(self, key: str, weight: float, name: str = "") -> int:
        """Return the virtual time from one task of the key to the next of its tenant
        (dimensionless)."""
        return step(self._charge(key, name), self._weight(key, weight))

    def _weight(self, key: str, weight: float) -> float:
        return tenant_weight(self.weights, tenant_of(key), key, weight)

    def turn(self, key: str) -> int:
        """Return the virtual time of the key's tenant at which the next turn of the key comes; 0 if
        it is unknown."""
        return self._turns.next_of(tenant_of(key), key)

    def has_turns(self, tenant: str) -> bool:
        """Return whether a path of the tenant has had a turn."""
        return self._turns.has(tenant)

    def first_turn(self, key: str, is_early: bool) -> int:
        """Return the next turn of a key that begins to wait. If it is due: the virtual time of its
        tenant, and unless `is_early`, a part of one step more."""
        tenant = tenant_of(key)
        now, turn = self._turns.now(tenant), self._turns.next_of(tenant, key)
        if turn > now:
            return turn
        return now if is_early else now + phase(key, self._own_step(tenant, key))

    def spread_turn(self, key: str) -> None:
        """Spread the first turns of keys inside their tenants that come in the order of arrival."""
        tenant = tenant_of(key)
        if key != tenant:
            self._turns.spread(tenant, key, phase(key, self._own_step(tenant, key)))

    def take_turn(self, key: str, turn: int) -> bool:
        """Record that a key is read at its turn; return whether this moves the virtual time of its
        tenant."""
        return self._turns.take(tenant_of(key), key, turn)

    def renew_turn(self, key: str) -> None:
        """Let the next turn of a key come at most one step, at its new weight, after the virtual
        time of its tenant."""
        tenant = tenant_of(key)
        self._turns.bring_forward(tenant, key, self._own_step(tenant, key))

    def begin_turns(self, key: str) -> None:
        """Let a new key start at the virtual time of its tenant."""
        self.turns_taken.pop(key, None)

    @property
    def turns_taken(self) -> dict[str, int]:
        """Turns at which keys of tenants were last read, of keys that are not new."""
        return self._turns.taken

    def _own_step(self, tenant: str, key: str) -> int:
        return stride(key_weight(self.weights, tenant, key, self.weight(key)))

    def is_behind(self, key: str) -> bool:
        """Return whether the key has had no turn in its tenant that the tenant's other keys have
        not had. A key that is a tenant has no others."""
        tenant = tenant_of(key)
        return key != tenant and not self._turns.ahead(tenant, key)

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

    def renew(self, tenant: str, next_pass: int | None, virtual_time: int) -> None:
        """Set the tenant's next pass after its weight has changed. None: no task of the tenant
        waits, so its next one comes a step after the virtual time, or sooner."""
        before = self._counters.next_pass(tenant)
        if next_pass is None:
            next_pass = min(before, virtual_time + self.step(tenant, 1.0))
        if next_pass > virtual_time or before > virtual_time:
            self._counters.put(tenant, next_pass, virtual_time)

    def next_pass(self, key: str) -> int:
        """Return the next pass of the key's tenant, or more; 0 if it is unknown."""
        return self._counters.next_pass(tenant_of(key))

    def spread(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        """Return the next pass of the key's tenant; less than a step after the virtual time if the
        tenant is idle."""
        next_pass = self.next_pass(key)
        if next_pass > virtual_time:
            return next_pass
        return virtual_time + phase(tenant_of(key), self.step(key, weight, name))

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
