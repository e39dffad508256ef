"""A random lane that is read by fairness key, with weights of up to 1,000 and a very small memory:
its backlog, its trigger table and the rows that its channel keeps. A read may be under way while
tasks in memory start. Every key has more tasks than can run."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import Passes
from fairlead.core.fair.steps import Timing
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import LaneKey, LaneRecord, Trigger, tenant_of
from tests.simulation.stored_lane import StoredLane

LANE = LaneKey("q", 0, 5)


class KeyedWorld(StoredLane):
    """One world. `run` starts tasks one by one."""

    def __init__(self, seed: int, has_tenants: bool = False, is_late: bool = False) -> None:
        """`is_late`: tasks start while a read is under way."""
        chance = random.Random(f"keyed world {seed}")
        number = chance.choice([2, 5, 20, 40])
        self.keys = [f"k{n}" for n in range(number)]
        if has_tenants:
            tenants = chance.choice([1, 2, 5])
            self.keys = [f"t{chance.randrange(tenants)}/{key}" for key in self.keys]
        names = sorted({*self.keys, *map(tenant_of, self.keys)})
        self.weights = {name: chance.choice([1.0, 1.0, 2.0, 50.0, 1000.0]) for name in names}
        self.capacity = chance.choice([1, 2, 4, 5, 10, 20, 50, 200])
        self.late = chance.choice([1, 3, 10]) if is_late else 0
        self.is_by_task = chance.random() < 0.4 and not has_tenants
        """Whether the weights are those of the tasks, which the lane learns with the tasks."""
        set_weights = {} if self.is_by_task else dict(self.weights)
        self._ledger = SlotLedger(1)
        passes = Passes(Counters(), set_weights)
        backlog = Backlog(1, LaneRecord(), passes, self.capacity, Timing(), is_new=True)
        super().__init__(backlog, TriggerTable(self._ledger))
        self._table.weigh(LANE.queue, set_weights)
        self.backlog.is_read_by_key = True
        self.backlog.remember((), self.keys)
        self._table.spread(LANE, self.backlog.turns_taken)
        self._reading: list[tuple[str, int]] = []
        self._ticks_left = 0
        self._number = 0

    def run(self, count: int) -> list[str]:
        """Start tasks; return their keys."""
        ran: list[str] = []
        while len(ran) < count:
            self.tidy()
            if not self._reading and self.backlog.is_asking:
                unread = len({*map(tenant_of, self.keys)})
                self._reading, self._ticks_left = self.backlog.choose_keys(unread, 0), self.late
            if self._reading and not self._ticks_left:
                self._read()
                continue
            self._ticks_left -= bool(self._reading)
            taken, _ = self._table.take(1, 0.0)
            assert taken or self._reading, "nothing is in memory, and nothing is read"
            if taken:
                self.backlog.take(taken)
                self.backlog.ack(taken)
                self._table.freed(self._ledger.release(taken[0], 0.0))
                ran.append(taken[0].fairness_key)
        return ran

    def _read(self) -> None:
        read, self._reading = self._reading, []
        self.apply(self.backlog.add([self._make(key) for key, most in read for _ in range(most)]))
        self.backlog.remember((), [key for key, _ in read])

    def _make(self, key: str) -> Trigger:
        self._number = number = self._number + 1
        weight = self.weights[key] if self.is_by_task else 1.0
        return Trigger(str(number), 1, "q", 0, "pay", 5, key, weight, None, seq=number)

    def shortest(self, ran: list[str]) -> float:
        """Return how much the share of a tenant, or of a key among the tasks of its tenant, is
        below its due at most."""
        by_tenant = Counter(map(tenant_of, ran))
        worst = self.short_tenant(ran)
        for tenant in sorted({*map(tenant_of, self.keys)}):
            keys = {key for key in self.keys if tenant_of(key) == tenant}
            if by_tenant[tenant] >= len(ran) // 4:  # else a share of a few tasks
                worst = max(worst, self._short(Counter(ran), keys))
        return worst

    def short_tenant(self, ran: list[str]) -> float:
        """Return how much the share of a tenant is below its due at most."""
        return self._short(Counter(map(tenant_of, ran)), {*map(tenant_of, self.keys)})

    def _short(self, ran: Counter[str], sharers: set[str]) -> float:
        weights = sum(self.weights[each] for each in sharers)
        count = sum(ran[each] for each in sharers)
        return max(self.weights[each] / weights - ran[each] / count for each in sharers)

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
