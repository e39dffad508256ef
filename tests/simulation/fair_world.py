"""A random world of a fair queue: the trigger table, the ledger of limits and the lanes, with
arrivals, ends, passing time and changed limits. It measures how far apart
the service of two keys, or of two tenants, is while both are runnable."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from itertools import combinations

from fairlead.core.fair.flows import FairLane
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.cluster_limits import ClusterLimit, OnNode
from fairlead.core.limits.limit_tree import LimitTree
from fairlead.core.limits.limits import ConcurrencyPolicy, Limit, RateLimit
from fairlead.core.limits.sharded_permits import Permits
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.model import LaneKey, Trigger, tenant_of
from tests.unit.ledger_store import LedgerStore

QUEUE = "q"
PRIORITY = 5
STEPS = 250

Flow = tuple[int, str]
"""(partition, fairness key)."""

Sharer = tuple[int, str, str | None]
"""(partition, tenant, fairness key inside the tenant): what gets a share. The key is None for the
tenant itself, and a key that is no path is a tenant."""


class Service:
    """Service of two sharers, in tasks by weight, since both are runnable."""

    def __init__(self) -> None:
        self._difference = self._least = self._most = 0.0

    def count(self, served: tuple[float, float], costs: tuple[float, float]) -> None:
        """Count what each key got; `costs`: 1 / weight of each."""
        self._difference += served[0] * costs[0] - served[1] * costs[1]
        self._least = min(self._least, self._difference)
        self._most = max(self._most, self._difference)

    @property
    def gap(self) -> float:
        """Largest difference of the service over any interval."""
        return self._most - self._least


class Cluster:
    """The permits of a limit of the cluster, with one node."""

    def __init__(self, limit: ClusterLimit) -> None:
        self._permits = Permits("node", ttl=15.0)
        self._ledger = LedgerStore()
        self.policy: OnNode = limit.on_node(self._permits, lambda: None)

    def round(self, now: float) -> list[Hashable]:
        """Renew the permits; return the limits that have room again."""
        roomy = self._ledger.follow(self._permits.round("", lambda: now))
        return self.policy.limits_of(roomy or ())


class FairWorld:
    """One world; `run` returns the worst gap between two keys, or two tenants."""

    checks_order = True
    """Whether each key must start the first of its tasks that may run."""
    has_tenants = False
    """Whether keys are paths."""
    more_keys = 0
    """Keys of one tenant besides the others."""

    def __init__(self, seed: int, is_mixed: bool = False) -> None:
        """`is_mixed`: tasks of a key have several names, and some have ordering keys."""
        self.chance = chance = random.Random(f"fair world {seed}")
        self.now = 0.0
        self.names = [f"name {n}" for n in range(chance.randint(1, 4))]
        self.keys = [f"key {n}" for n in range(chance.randint(2, 6))]
        if self.has_tenants:
            self.keys = [f"t{chance.randrange(3)}/{key}" for key in self.keys]
            self.keys += [f"t{n}" for n in range(4) if chance.random() < 0.4]
            self.keys += [f"t0/more {n}" for n in range(self.more_keys)]
        self.weights = {key: chance.choice([1.0, 1.0, 2.0, 5.0, 0.5]) for key in self.keys}
        self._name_of = {key: chance.choice(self.names) for key in self.keys}
        self._partitions = chance.choice([1, 1, 2])
        self._is_mixed = is_mixed
        self.ledger = SlotLedger(chance.randint(1, 6))
        self._clusters: list[Cluster] = []
        self._register_limits()
        self.table = TriggerTable(self.ledger)
        self._set_weights = {key: 3.0 for key in self.keys if chance.random() < 0.2}
        for tenant in sorted({tenant_of(key) for key in self.keys} if self.has_tenants else ()):
            # The weight of the tenant, and of its own tasks, whose key is no path.
            self.weights[tenant] = 1.0
            self._set_weights.pop(tenant, None)
            if chance.random() < 0.7:
                self._set_weights[tenant] = chance.choice([2.0, 5.0, 0.5])
        self.weights.update(self._set_weights)
        self.table.weigh(QUEUE, self._set_weights)
        self.waiting: defaultdict[Flow, dict[str, Trigger]] = defaultdict(dict)
        """Triggers in the table by flow and id."""
        self._running: list[Trigger] = []
        self._number = 0
        self._services: dict[tuple[Sharer, Sharer], Service] = {}

    def _register_limits(self) -> None:
        chance = self.chance
        rates = [RateLimit(3, per=2.0), RateLimit(2, per=1.0, key="fairness_key")]
        tree = LimitTree(
            chance.randint(1, 6),
            names={self.names[0]: chance.randint(1, 3)},
            fairness_keys={self.keys[0]: 1},
        )
        limits = [
            (),
            (Limit(chance.randint(1, 4)),),
            (tree,),
            (Limit(chance.randint(1, 2), per="fairness_key"),),
            (chance.choice(rates),),
            (self._on_node(ClusterLimit(chance.randint(1, 3))), chance.choice(rates)),
        ]
        self.ledger.register_queue(QUEUE, *chance.choice(limits))
        for name in self.names:
            kinds: list[ConcurrencyPolicy] = [
                Limit(chance.randint(1, 3)),
                RateLimit(chance.randint(1, 4), per=1.0),
                self._on_node(ClusterLimit(chance.randint(1, 3))),
            ]
            limit = [chance.choice(kinds)] if chance.random() < 0.6 else []
            self.ledger.register_task(QUEUE, name, *limit)

    def _on_node(self, limit: ClusterLimit) -> OnNode:
        cluster = Cluster(limit)
        self._clusters.append(cluster)
        return cluster.policy

    def run(self) -> float:
        """Run the world; return the worst gap between two keys, in multiples of the bound."""
        worst = 0.0
        for _ in range(STEPS):
            self._change()
            while True:
                runnable = self._runnable()
                taken, failed = self.table.take(1, self.now)
                assert not failed
                if not taken:
                    assert not runnable, f"the table takes nothing, but {runnable} may run"
                    break
                worst = max(worst, self._serve(taken[0], runnable))
        return worst

    # what happens ---------------------------------------------------------------------------------

    def push(self, trigger: Trigger) -> None:
        """Push a trigger that came into memory."""
        self.table.push(trigger)

    def _change(self) -> None:
        kinds = {
            self._arrive: 25,
            self._end: 35,
            self._pass_time: 10,
            self._leave_and_return: 3,
            self._lend: 3,
            self._set_limits: 1,
            self._set_weight: 1,
        }
        self.chance.choices([*kinds], weights=[*kinds.values()])[0]()

    def _arrive(self) -> None:
        key, partition = self.chance.choice(self.keys), self.chance.randrange(self._partitions)
        triggers = [self._trigger(key, partition) for _ in range(self.chance.choice([1, 1, 3, 20]))]
        flows = self.table.lane(LaneKey(QUEUE, partition, PRIORITY))
        if self.chance.random() < 0.3:
            self._begin_later(flows, key)
        for trigger in triggers:
            self._add(trigger)
        flows.tenants.starts.clear()

    def _begin_later(self, flows: FairLane, key: str) -> None:
        """Let the next task of a key come less than one step after the virtual time, and after that
        of its tenant, as for a key that is found among many."""
        tenant = tenant_of(key)
        flows.tenants.starts[tenant] = flows.tenants.start(tenant)
        flows.keys(tenant).starts = {key: flows.keys(tenant).start(key)}

    def _add(self, trigger: Trigger) -> None:
        self.push(trigger)
        self.waiting[_flow(trigger)][trigger.id] = trigger

    def _trigger(self, key: str, partition: int) -> Trigger:
        chance = self.chance
        self._number += 1
        name, ordering_key = self._name_of[key], None
        if self._is_mixed:
            name = chance.choice(self.names)
            ordering_key = chance.choice([None, f"{key} {partition} {chance.randrange(3)}"])
        return Trigger(
            id=str(self._number),
            version=1,
            queue=QUEUE,
            partition=partition,
            name=name,
            priority=PRIORITY,
            fairness_key=key,
            weight=1.0 if key in self._set_weights else self.weights[key],
            ordering_key=ordering_key,
            order_at=self._number,
            seq=self._number,
        )

    def _end(self) -> None:
        """End a run, or return its claim: its result is unknown."""
        if not self._running:
            return
        trigger = self._running.pop(self.chance.randrange(len(self._running)))
        if self.is_claimed(trigger):
            freed = self.ledger.release(trigger, self.now)
        else:
            freed = self.ledger.cancel(trigger, self.now)
            self._add(trigger)
        if trigger.ordering_key is not None:
            freed += self.ledger.release_reservation(OrderingKey(QUEUE, trigger.ordering_key))
        self.table.freed(freed)

    def is_claimed(self, trigger: Trigger) -> bool:
        """Return whether a trigger that was taken has run, and not only its claim has failed."""
        return self.chance.random() < 0.9

    def come_back(self, trigger: Trigger) -> None:
        """Push a trigger that was lent."""
        self.push(trigger)

    def _pass_time(self) -> None:
        self.now = round(self.now + self.chance.choice([0.1, 0.5, 2.0, 10.0]), 1)
        for cluster in self._clusters:
            self.table.freed(cluster.round(self.now))

    def _leave_and_return(self) -> None:
        """Remove triggers of the table, and push them again."""
        triggers = [t for flow in self.waiting.values() for t in flow.values()]
        chosen = self.chance.sample(triggers, min(len(triggers), self.chance.choice([1, 5, 50])))
        self.table.remove(chosen)
        for trigger in chosen:
            self.push(trigger)

    def _lend(self) -> None:
        """Look for triggers that other nodes may run, and lend some, which come back at once."""
        if not self.table.spare_names():
            return
        wanted = self.chance.sample(self.names, self.chance.randint(0, len(self.names)))
        for trigger in self.table.lend(self.chance.choice([1, 5]), lambda t: t.name in wanted):
            self._services.clear()  # tasks of some keys started on other nodes
            if trigger.ordering_key is not None:
                key = OrderingKey(QUEUE, trigger.ordering_key)
                self.table.freed(self.ledger.release_reservation(key))
            self.come_back(trigger)

    def _set_limits(self) -> None:
        chosen = self.chance.sample(self.keys, self.chance.randint(0, 2))
        self.table.set_limits(QUEUE, {key: self.chance.randint(1, 2) for key in chosen})

    def _set_weight(self) -> None:
        key = self.chance.choice([*self._set_weights] or [""])
        if key:
            self._set_weights[key] = self.weights[key] = self.chance.choice([0.5, 1.0, 3.0, 20.0])
            self._services.clear()
            for partition in range(self._partitions):
                self.table.reweigh(LaneKey(QUEUE, partition, PRIORITY), [key])

    # what is measured -----------------------------------------------------------------------------

    def _runnable(self) -> dict[Flow, Trigger]:
        """Return the flows of which a task could start now, with the first such task."""
        found = {}
        for flow, triggers in self.waiting.items():
            heads: dict[Hashable, Trigger] = {}
            for trigger in sorted(triggers.values(), key=_place):
                column = (self.ledger.column(trigger), trigger.ordering_key or trigger.id)
                heads.setdefault(column, trigger)
            for trigger in sorted(heads.values(), key=lambda trigger: trigger.seq):
                if self._could_run(trigger):
                    found[flow] = trigger
                    break
        return found

    def _could_run(self, trigger: Trigger) -> bool:
        if self.ledger.room <= 0 or self.ledger.acquire(trigger, self.now) is not None:
            return False
        self.ledger.cancel(trigger, self.now)
        if trigger.ordering_key is not None:
            self.ledger.release_reservation(OrderingKey(QUEUE, trigger.ordering_key))
        return True

    def _serve(self, trigger: Trigger, runnable: Mapping[Flow, Trigger]) -> float:
        """Start the trigger; return the worst gap between two runnable flows."""
        flow = _flow(trigger)
        assert flow in runnable, f"{flow} may not run"
        assert not self.checks_order or runnable[flow] == trigger, f"{trigger} is not next"
        del self.waiting[flow][trigger.id]
        self._running.append(trigger)
        worst = 0.0
        pairs = self._pairs(runnable)
        for pair in self._services.keys() - pairs:
            del self._services[pair]
        served, amount = {_tenant(flow), _within(flow)}, self.start(trigger)
        for one, other in pairs:
            costs = (1 / self._weight(one), 1 / self._weight(other))
            service = self._services.setdefault((one, other), Service())
            service.count((amount * (one in served), amount * (other in served)), costs)
            worst = max(worst, service.gap / self._bound(one, other))
        return worst

    def _pairs(self, runnable: Iterable[Flow]) -> set[tuple[Sharer, Sharer]]:
        """Return the pairs of sharers among which fairness is promised: two tenants, or two keys of
        one tenant."""
        tenants: defaultdict[Sharer, list[Sharer]] = defaultdict(list)
        for flow in sorted(runnable):
            tenants[_tenant(flow)].append(_within(flow))
        pairs = {*combinations(tenants, 2)}
        for keys in tenants.values():
            pairs.update(combinations(keys, 2))
        return pairs

    def start(self, trigger: Trigger) -> float:
        """Return how much service a trigger gets that starts."""
        return 1.0

    def most_owed(self, sharer: Sharer) -> float:
        """Return by how much service the sharer may be ahead or behind at most."""
        return 1.0

    def _bound(self, *sharers: Sharer) -> float:
        return sum(self.most_owed(sharer) / self._weight(sharer) for sharer in sharers)

    def _weight(self, sharer: Sharer) -> float:
        _, tenant, key = sharer
        if key is None:
            return self.weights[tenant]
        return 1.0 if key == tenant else self.weights[key]


def _tenant(flow: Flow) -> Sharer:
    return flow[0], tenant_of(flow[1]), None


def _within(flow: Flow) -> Sharer:
    return flow[0], tenant_of(flow[1]), flow[1]


def _flow(trigger: Trigger) -> Flow:
    return trigger.partition, trigger.fairness_key


def _place(trigger: Trigger) -> tuple[object, ...]:
    """Return the place of a trigger in the order of its ordering key, or by position."""
    if trigger.ordering_key is None:
        return (0, 0, trigger.seq)
    return (1, trigger.order_at, trigger.id)
