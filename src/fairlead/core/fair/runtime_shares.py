"""Shares of run time: the key of a lane that goes next is decided when its task reaches the trigger
table, not when the task arrives.

A level is assigned when a task arrives, from its expected run time, and does not change. Here each
tenant has an account of its run time: the time that ended runs took, and for each current run its
charge, or its time so far if that is more. The first tasks of each key are in the trigger table, at
the pass that the account gives when they get there; the others of the key wait here, in the order
of their levels. A key that is no path is a tenant (`fairlead.core.fair.tenants`). The keys of one
tenant take turns: as one task leaves the table, the next of its key enters behind the others of the
tenant, and the weight of a key says how many tasks it has in the table.

The bound. Let two tenants, f and m, both have tasks in memory that no limit holds back throughout
an interval, and let S be the total run time of the tasks of a tenant taken in it. Then

    | S_f / w_f - S_m / w_m |  <=  (c_f + 5 u_f) / w_f + (c_m + 5 u_m) / w_m

where c is the greatest charge of one task of the tenant, and u its greatest uncertainty at one
moment: the sum of |took - charged| over its tasks that run or are in the table. With exact
charges u is 0, and this is the bound of start-time fair queueing (Goyal, Vin and Cheng 1996) in
seconds. Why: let t(k) be the pass of the first task of k in the table. Over the interval t(k)
advances by S_k / w_k, except for the uncertainty at its two ends (2 u). And t(f) is never further
above t(m) than c_f + u_f + 2 u_m: when f was last taken, t(f) was not above t(m); since then f has
advanced by its charge and by corrections, and m has gone back by corrections at most. The bound
holds while the unit of run times does not change, and no tenant owes or has saved more than
MOST_OWED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from fairlead.core.fair.passes import STRIDE_SCALE
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.tenants import key_weight, tenant_weight
from fairlead.model import Level, Trigger, tenant_of

MOST_OWED = 1000
"""Maximum number of units (mean runs of the queue), divided by its weight, that a tenant is behind
or ahead of the others. A run that hangs delays its tenant by no more; the excess is dropped."""

TABLE_MICROS = 50_000
"""Maximum expected run time of the triggers of one key and name in the table (microseconds), if the
key is no path; at least one trigger is there."""

MOST_IN_TABLE = 100
"""Maximum number of triggers of one key and name in the table."""

MOST_IDLE = 10_000
"""Maximum number of tenants without tasks here that are kept because they are ahead."""


class TableEntry(NamedTuple):
    """A trigger to put into the table."""

    trigger: Trigger
    pass_: int
    """Virtual time of this lane, used instead of the pass of its level."""


@dataclass(eq=False)
class _Account:
    account: int
    """Virtual time of the tenant if none of its tasks ran."""
    weight: float
    waiting: int = 0
    """Tasks that wait, including those in the table."""
    in_table: int = 0
    """Total charge of its tasks in the table."""
    running: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    """Charge and start (monotonic seconds) of each run, by task id and version."""


@dataclass(eq=False)
class _Flow:
    """Triggers that the same limits stop: if the first cannot run, neither can the others."""

    waiting: list[tuple[Level, Trigger]] = field(default_factory=list)
    """Heap of triggers that are not in the table."""
    in_table: dict[Level, tuple[int, int]] = field(default_factory=dict)
    """Pass and charge of the triggers in the table."""


_FlowKey = tuple[str, str, str | None]


class RuntimeShares:
    """Shares of one lane. The charge of a task in virtual time is divided by the weight of its
    tenant."""

    def __init__(self, weights: Mapping[str, float], run_times: RunTimes) -> None:
        self.virtual_time = 0
        """Highest pass taken."""
        self._weights = weights
        self._run_times = run_times
        self._tenants: dict[str, _Account] = {}
        self._flows: dict[_FlowKey, _Flow] = {}
        self._touched: dict[_FlowKey, None] = {}

    def add(self, triggers: Iterable[Trigger], now: float) -> None:
        """Add triggers that are in memory and may run. `now`: monotonic seconds."""
        for trigger in triggers:
            tenant = self._tenant(trigger)
            if not tenant.waiting:
                # A tenant without waiting tasks starts at the virtual time: it has saved nothing.
                self._keep_within(tenant, now, saved=0)
            tenant.waiting += 1
            flow = self._flows.setdefault(_flow(trigger), _Flow())
            heappush(flow.waiting, (_level(trigger), trigger))
            self._touched[_flow(trigger)] = None

    def next(self, now: float) -> list[TableEntry]:
        """Return the triggers to put into the table now."""
        times: dict[str, int] = {}
        found: list[TableEntry] = []
        touched = [
            (flow.waiting[0][0], name)
            for name in self._touched
            if (flow := self._flows.get(name)) and flow.waiting
        ]
        self._touched.clear()
        for _, (fairness_key, name, ordering_key) in sorted(touched):
            flow = self._flows[fairness_key, name, ordering_key]
            tenant_name = tenant_of(fairness_key)
            tenant = self._tenants[tenant_name]
            if tenant_name not in times:
                times[tenant_name] = self._keep_within(tenant, now, saved=MOST_OWED)
            time = times[tenant_name]
            # All tasks of an ordering key: the only one that may run is any of them.
            room = (
                self._room(flow.waiting[0][1])
                if ordering_key is None
                else len(flow.waiting) + len(flow.in_table)
            )
            # The pass is never below that of a trigger of the flow that is in the table already,
            # even if a run that took less than its charge has lowered the time of the tenant since.
            latest = max((pass_ for pass_, _ in flow.in_table.values()), default=time)
            while flow.waiting and len(flow.in_table) < room:
                level, trigger = heappop(flow.waiting)
                pass_ = latest = max(latest, time + tenant.in_table)
                charge = self._stride(self._run_times.charge(name, fairness_key), tenant)
                tenant.in_table += charge
                flow.in_table[level] = pass_, charge
                found.append(TableEntry(trigger, pass_))
        return found

    def taken(self, triggers: Iterable[Trigger], now: float) -> None:
        """Record that triggers left the table to run."""
        for trigger in triggers:
            pass_, charge = self._leave_table(trigger)
            tenant = self._tenants[tenant_of(trigger.fairness_key)]
            tenant.running[trigger.id, trigger.version] = charge, now
            self.virtual_time = max(self.virtual_time, pass_)

    def ended(self, trigger: Trigger, cost: int) -> None:
        """Record that a run ended after `cost` microseconds, or (0) never began."""
        tenant = self._tenant(trigger)
        tenant.running.pop((trigger.id, trigger.version), None)
        tenant.account += round(self._run_times.virtual(cost) / tenant.weight)
        self._drop_idle(tenant_of(trigger.fairness_key), tenant)

    def returned(self, triggers: Sequence[Trigger], now: float) -> None:
        """Record that triggers were taken and did not run; they wait again."""
        for trigger in triggers:
            # The account may have ended with another trigger of the same task, whose claim was
            # refused.
            self._tenant(trigger).running.pop((trigger.id, trigger.version), None)
        self.add(triggers, now)

    def remove(self, triggers: Iterable[Trigger]) -> list[Trigger]:
        """Remove triggers; return those that are in the table."""
        in_table = []
        removed: dict[_FlowKey, set[Level]] = {}
        for trigger in triggers:
            if _level(trigger) in self._flows[_flow(trigger)].in_table:
                in_table.append(trigger)
            else:
                removed.setdefault(_flow(trigger), set()).add(_level(trigger))
                self._tenants[tenant_of(trigger.fairness_key)].waiting -= 1
        for name, levels in removed.items():
            flow = self._flows[name]
            flow.waiting = [entry for entry in flow.waiting if entry[0] not in levels]
            heapify(flow.waiting)
            self._tidy(name, flow)
        for trigger in in_table:
            self._leave_table(trigger)
        return in_table

    def behind(self, trigger: Trigger) -> list[Trigger]:
        """Return the triggers that wait behind a trigger in the table and that the same limits
        stop, by level."""
        flow = self._flows.get(_flow(trigger))
        return [] if flow is None else [waiting for _, waiting in sorted(flow.waiting)]

    def waiting(self) -> Iterator[Trigger]:
        """Yield all triggers that are not in the table."""
        for flow in self._flows.values():
            yield from (trigger for _, trigger in flow.waiting)

    def _tenant(self, trigger: Trigger) -> _Account:
        key, weight = trigger.fairness_key, trigger.weight
        name = tenant_of(key)
        weight = tenant_weight(self._weights, name, key, weight)
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Account(self.virtual_time, weight)
        tenant.weight = weight
        return tenant

    def _keep_within(self, tenant: _Account, now: float, saved: int) -> int:
        """Return the virtual time of the tenant, its runs included, after moving its account so
        that it owes and has saved no more than allowed."""
        virtual = self._run_times.virtual
        time = tenant.account + sum(
            max(charge, round(virtual(round((now - since) * 1e6)) / tenant.weight))
            for charge, since in tenant.running.values()
        )
        unit = STRIDE_SCALE / tenant.weight
        least, most = (
            self.virtual_time - round(saved * unit),
            self.virtual_time + round(MOST_OWED * unit),
        )
        kept = max(least, min(time, most))
        tenant.account += kept - time
        return kept

    def _leave_table(self, trigger: Trigger) -> tuple[int, int]:
        """Remove a trigger from the table; return its pass and charge."""
        name = _flow(trigger)
        flow, tenant = self._flows[name], self._tenants[tenant_of(trigger.fairness_key)]
        pass_, charge = flow.in_table.pop(_level(trigger))
        tenant.in_table -= charge
        tenant.waiting -= 1
        self._tidy(name, flow)
        return pass_, charge

    def _tidy(self, name: _FlowKey, flow: _Flow) -> None:
        if flow.waiting:
            self._touched[name] = None
        elif not flow.in_table:
            del self._flows[name]

    def _drop_idle(self, name: str, tenant: _Account) -> None:
        if tenant.waiting or tenant.running:
            return
        if tenant.account <= self.virtual_time:
            del self._tenants[name]
        elif len(self._tenants) > MOST_IDLE + len(self._flows):
            idle = [
                (each.account, name)
                for name, each in self._tenants.items()
                if not each.waiting and not each.running
            ]
            for _, name in sorted(idle)[: max(1, len(idle) - MOST_IDLE // 2)]:
                del self._tenants[name]

    def _room(self, trigger: Trigger) -> int:
        """Return how many triggers of the key and name of this one may be in the table."""
        name, key = trigger.name, trigger.fairness_key
        expected = self._run_times.expected(name, key)
        micros: float = TABLE_MICROS
        if (tenant := tenant_of(key)) != key:
            # The keys of a tenant take turns, which are as long as their weights.
            weight = key_weight(self._weights, tenant, key, trigger.weight)
            micros = max(micros, self._run_times.unit) * weight
        return max(1, min(int(micros // expected), MOST_IN_TABLE)) if expected else 1

    @staticmethod
    def _stride(charge: int, tenant: _Account) -> int:
        return max(1, round(charge / tenant.weight))


def _flow(trigger: Trigger) -> _FlowKey:
    return trigger.fairness_key, trigger.name, trigger.ordering_key


def _level(trigger: Trigger) -> Level:
    assert trigger.level is not None
    return trigger.level
