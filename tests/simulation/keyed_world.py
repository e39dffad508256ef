"""A random lane that is read by fairness key, with weights of up to 1,000 and a very small memory:
its trigger table and the rows that its channel keeps. A read may be under way while
tasks in memory start. Every key has more tasks than can run."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import tenant_of
from tests.simulation.stored_lane import StoredLane, by_tenant, shortfall


class KeyedWorld(StoredLane):
    """One world. `run` starts tasks one by one."""

    def __init__(self, seed: int, has_tenants: bool = False, is_late: bool = False) -> None:
        """`is_late`: tasks start while a read is under way."""
        chance = random.Random(f"keyed world {seed}")
        number = chance.choice([2, 5, 20, 40])
        keys = [f"k{n}" for n in range(number)]
        if has_tenants:
            tenants = chance.choice([1, 2, 5])
            keys = [f"t{chance.randrange(tenants)}/{key}" for key in keys]
        names = sorted({*keys, *map(tenant_of, keys)})
        self.weights = {name: chance.choice([1.0, 1.0, 2.0, 50.0, 1000.0]) for name in names}
        self.capacity = chance.choice([1, 2, 4, 5, 10, 20, 50, 200])
        self.late = chance.choice([1, 3, 10]) if is_late else 0
        self.is_by_task = chance.random() < 0.4 and not has_tenants
        """Whether the weights are those of the tasks, which the lane learns with the tasks."""
        set_weights = {} if self.is_by_task else dict(self.weights)
        self._ledger = SlotLedger(1)
        table = TriggerTable(self._ledger)
        table.weigh("q", set_weights)
        super().__init__(keys, self.capacity, table)
        self._ticks_left = 0

    def run(self, count: int) -> list[str]:
        """Start tasks; return their keys."""
        ran: list[str] = []
        while len(ran) < count:
            if self.choose():
                self._ticks_left = self.late
            if self.reading and not self._ticks_left:
                self.read()
                continue
            self._ticks_left -= bool(self.reading)
            taken, _ = self._table.take(1, 0.0)
            assert taken or self.reading, "nothing is in memory, and nothing is read"
            for trigger in taken:
                self.started(trigger)
                self._table.freed(self._ledger.release(trigger, 0.0))
                ran.append(trigger.fairness_key)
        return ran

    def weight_of(self, key: str) -> float:
        return self.weights[key] if self.is_by_task else 1.0

    def shortest(self, ran: list[str]) -> float:
        """Return how much the share of a tenant, or of a key among the tasks of its tenant, is
        below its due at most."""
        starts, worst = Counter(ran), self.short_tenant(ran)
        for keys in by_tenant(self.keys).values():
            if sum(starts[key] for key in keys) >= len(ran) // 4:  # else a share of a few tasks
                worst = max(worst, shortfall(starts, keys, self.weights))
        return worst

    def short_tenant(self, ran: list[str]) -> float:
        """Return how much the share of a tenant is below its due at most."""
        return shortfall(Counter(map(tenant_of, ran)), by_tenant(self.keys), self.weights)

    def gap(self, ran: list[str]) -> float:
        """Return the greatest difference of service between two tenants over any interval, in
        multiples of the bound of start-time fair queueing."""
        worst = 0.0
        tenants = [*map(tenant_of, ran)]
        for pair in combinations(sorted({*tenants}), 2):
            costs = {pair[0]: 1 / self.weights[pair[0]], pair[1]: -1 / self.weights[pair[1]]}
            now = least = most = 0.0
            for tenant in tenants:
                if tenant in costs:
                    now += costs[tenant]
                    least, most = min(least, now), max(most, now)
            worst = max(worst, (most - least) / sum(map(abs, costs.values())))
        return worst
