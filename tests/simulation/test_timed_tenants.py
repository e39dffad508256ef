"""Shares of run time among tenants, and among the keys of each, in a long lane that is read by
fairness key: levels by expected run time, turns inside tenants, the trigger table, and several
workers. Run times are constant, change in steps, or have a heavy tail."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from heapq import heappop, heappush

import pytest

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.steps import BacklogWrite, Changes, Timing
from fairlead.core.fair.time_passes import TimePasses
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import LaneKey, LaneRecord, Trigger, tenant_of
from tests import tiers
from tests.tiers import seeds

WORLDS = tiers.worlds(6)
LEARNT = 300
"""Starts after which the run times of the keys are known. The tasks that are in memory then have
levels from before: the test passes over these too."""
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


class TimedWorld:
    """One lane with random run times and weights, and memory for 10 to 1,000 triggers. Every key
    has more tasks than can run."""

    def __init__(self, seed: int, costs: Costs) -> None:
        self._chance = chance = random.Random(f"timed world {seed}")
        self._stretch = costs
        numbers = range(chance.choice([3, 8, 30]))
        self._keys = [f"t{chance.randrange(3)}/k{n}" for n in numbers]
        self._keys = [key if chance.random() < 0.7 else f"p {key[3:]}" for key in self._keys]
        self._usual = {key: chance.choice([10_000, 40_000, 160_000]) for key in self._keys}
        self._starts = Counter[str]()
        names = sorted({*self._keys, *map(tenant_of, self._keys)})
        weights = {name: chance.choice([2.0, 5.0, 50.0]) for name in names if chance.random() < 0.3}
        self._weights = dict.fromkeys(names, 1.0) | weights
        self._workers = chance.choice([1, 4])
        self._run_times = RunTimes()
        passes = TimePasses(Counters(), weights, self._run_times)
        self.capacity = capacity = chance.choice([10, 50, 200, 1000])
        self._backlog = Backlog(1, LaneRecord(), passes, capacity, Timing(), is_new=True)
        self._backlog.is_read_by_key = True
        self._backlog.remember((), self._keys)
        self._ledger = SlotLedger(self._workers)
        self._ledger.register_task("q", "pay")
        self._table = TriggerTable(self._ledger)
        self._table.weigh("q", weights)
        self._table.share_run_time("q", self._run_times)
        self._table.spread(LaneKey("q", 0, 5), self._backlog.turns_taken)
        self._running: list[tuple[int, int, int, Trigger]] = []
        """End, number, run time and trigger of each current run."""
        self._now = self._number = 0

    def run(self, starts: int) -> list[tuple[str, int]]:
        """Start tasks; return the key and the run time of each."""
        ran = []
        for _ in range(starts):
            while len(self._running) == self._workers:
                self._now, _, cost, ended = heappop(self._running)
                self._run_times.ended(ended.name, ended.fairness_key, cost)
                self._table.freed(self._ledger.release(ended, self._now / SECOND))
                self._table.ended(ended, cost)
            self._fill()
            [trigger], _ = self._table.take(1, self._now / SECOND)
            self._backlog.take([trigger])
            self._backlog.ack([trigger])
            key = trigger.fairness_key
            cost = round(self._usual[key] * self._stretch(self._starts[key], self._chance))
            self._starts[key] += 1
            heappush(self._running, (self._now + cost, trigger.seq, cost, trigger))
            ran.append((key, cost))
        return ran

    def _fill(self) -> None:
        unread = len({*map(tenant_of, self._keys)})
        while self._backlog.is_asking and (read := self._backlog.choose_keys(unread, 0)):
            new = [self._make(key) for key, count in read for _ in range(count)]
            changes = self._backlog.add(new)
            assert not isinstance(changes, BacklogWrite)
            self._apply(changes)
            self._backlog.remember((), [key for key, _ in read])

    def _make(self, key: str) -> Trigger:
        self._number = number = self._number + 1
        return Trigger(str(number), 1, "q", 0, "pay", 5, key, 1.0, None, seq=number)

    def _apply(self, changes: Changes) -> None:
        self._table.remove(changes.dropped)
        for trigger in changes.added:
            self._table.push(trigger)

    def short_tenant(self, ran: list[tuple[str, int]]) -> float:
        """Return how much the share of run time of a tenant is below its due at most."""
        spent = Counter[str]()
        for key, cost in ran:
            spent[tenant_of(key)] += cost
        return self._short(spent, {*map(tenant_of, self._keys)})

    def short_inside(self, ran: list[tuple[str, int]]) -> float:
        """Return the same for the share of a key in its tenant."""
        starts, spent, worst = Counter(key for key, _ in ran), Counter[str](), 0.0
        for key, cost in ran:
            spent[key] += cost
        for tenant in sorted({*map(tenant_of, self._keys)}):
            keys = {key for key in self._keys if tenant_of(key) == tenant}
            if sum(starts[key] for key in keys) >= ENOUGH:
                worst = max(worst, self._short(spent, keys))
        return worst

    def _short(self, spent: Counter[str], sharers: Collection[str]) -> float:
        weights = sum(self._weights[each] for each in sharers)
        total = sum(spent[each] for each in sharers)
        return max(self._weights[each] / weights - spent[each] / total for each in sharers)


@pytest.mark.parametrize("costs", [constant, changing, heavy_tailed])
@pytest.mark.parametrize("number", seeds(50, 1))
def test_run_time_is_shared_among_tenants_and_inside_each(number: int, costs: Costs) -> None:
    """Keys of great weight are read a few tasks at a time, so shares inside a tenant are less exact."""
    for seed in range(tiers.seed() + number * WORLDS, tiers.seed() + (number + 1) * WORLDS):
        world = TimedWorld(seed, costs)
        world.run(LEARNT + 2 * world.capacity)
        ran = world.run(STARTS)
        short, inside = world.short_tenant(ran), world.short_inside(ran)
        most = 0.15 if costs is constant else 0.3
        assert short <= most, f"seed {seed}: a tenant is {short:.3f} below its due"
        assert inside <= 0.2, f"seed {seed}: a key is {inside:.3f} below its due in its tenant"
