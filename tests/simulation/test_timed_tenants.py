"""Shares of run time among tenants, and among the keys of each, in a long lane that is read by
fairness key: the trigger table, and several workers. Run times are constant, change in steps, or have a heavy tail."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

import pytest

from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import Trigger, tenant_of
from tests import tiers
from tests.simulation.stored_lane import StoredLane, by_tenant, shortfall
from tests.tiers import block, seeds

WORLDS = tiers.worlds(6)
LEARNT = 300
"""Starts after which the run times of the keys are known."""
STARTS = 2000
ENOUGH = 400
"""Starts of a tenant from which the shares of its keys count."""
SECOND = 1_000_000

Costs = Callable[[int, random.Random], float]
"""Run time of the n-th task of a key, as a multiple of its usual one."""


def constant(n: int, chance: random.Random) -> float:
    return 1.0


def changing(n: int, chance: random.Random) -> float:
    """Return run times that change tenfold between windows of tasks."""
    return 10.0 if n // 40 % 2 else 1.0


def heavy_tailed(n: int, chance: random.Random) -> float:
    return min(100.0, chance.paretovariate(1.1))


class TimedWorld(StoredLane):
    """One lane with random run times and weights, and memory for 10 to 1,000 triggers. Every key
    has more tasks than can run."""

    def __init__(self, seed: int, costs: Costs) -> None:
        self._chance = chance = random.Random(f"timed world {seed}")
        self._stretch = costs
        numbers = range(chance.choice([3, 8, 30]))
        keys = [f"t{chance.randrange(3)}/k{n}" for n in numbers]
        keys = [key if chance.random() < 0.7 else f"p {key[3:]}" for key in keys]
        self._usual = {key: chance.choice([10_000, 40_000, 160_000]) for key in keys}
        self._starts = Counter[str]()
        names = sorted({*keys, *map(tenant_of, keys)})
        weights = {name: chance.choice([2.0, 5.0, 50.0]) for name in names if chance.random() < 0.3}
        self._weights = dict.fromkeys(names, 1.0) | weights
        self._workers = chance.choice([1, 4])
        self._run_times = RunTimes()
        self.capacity = chance.choice([10, 50, 200, 1000])
        self._ledger = SlotLedger(self._workers)
        self._ledger.register_task("q", "pay")
        table = TriggerTable(self._ledger)
        table.weigh("q", weights)
        table.share_run_time("q", self._run_times)
        super().__init__(keys, self.capacity, table)
        self._running: list[tuple[int, int, int, Trigger]] = []
        """End, number, run time and trigger of each current run."""
        self._now = 0

    def run(self, starts: int) -> list[tuple[str, int]]:
        """Start tasks; return the key and the run time of each."""
        ran = []
        for _ in range(starts):
            while len(self._running) == self._workers:
                self._now, _, cost, ended = heappop(self._running)
                self._run_times.ended(ended.name, ended.fairness_key, cost)
                self._table.freed(self._ledger.release(ended, self._now / SECOND))
                self._table.ended(ended, cost)
            while self.choose():
                self.read()
            [trigger], _ = self._table.take(1, self._now / SECOND)
            self.started(trigger)
            key = trigger.fairness_key
            cost = round(self._usual[key] * self._stretch(self._starts[key], self._chance))
            self._starts[key] += 1
            heappush(self._running, (self._now + cost, trigger.seq, cost, trigger))
            ran.append((key, cost))
        return ran

    def short_tenant(self, ran: list[tuple[str, int]]) -> float:
        """Return how much the share of run time of a tenant is below its due at most."""
        spent = spent_by([(tenant_of(key), cost) for key, cost in ran])
        return shortfall(spent, by_tenant(self.keys), self._weights)

    def short_inside(self, ran: list[tuple[str, int]]) -> float:
        """Return the same for the share of a key in its tenant."""
        starts, spent = Counter(key for key, _ in ran), spent_by(ran)
        served = [
            keys
            for keys in by_tenant(self.keys).values()
            if sum(starts[key] for key in keys) >= ENOUGH
        ]
        return max((shortfall(spent, keys, self._weights) for keys in served), default=0.0)


def spent_by(ran: list[tuple[str, int]]) -> Counter[str]:
    """Return the run time of each sharer."""
    spent = Counter[str]()
    for sharer, cost in ran:
        spent[sharer] += cost
    return spent


@pytest.mark.parametrize("costs", [constant, changing, heavy_tailed])
@pytest.mark.parametrize("number", seeds(1))
def test_run_time_is_shared_among_tenants_and_inside_each(number: int, costs: Costs) -> None:
    """Keys of great weight are read a few tasks at a time, so shares inside a tenant are less exact."""
    for seed in block(number, WORLDS):
        world = TimedWorld(seed, costs)
        world.run(LEARNT + 2 * world.capacity)
        ran = world.run(STARTS)
        short, inside = world.short_tenant(ran), world.short_inside(ran)
        most = 0.2 if costs is constant else 0.3
        assert short <= most, f"seed {seed}: a tenant is {short:.3f} below its due"
        assert inside <= 0.2, f"seed {seed}: a key is {inside:.3f} below its due in its tenant"
