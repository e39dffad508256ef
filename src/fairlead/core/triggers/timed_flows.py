"""Flows that share run time (`cost="runtime"`): hierarchical start-time fair queueing (Goyal, Vin
and Cheng 1996) among tenants, and inside a tenant among its keys, by the time that their runs take.

A trigger that starts moves the rank of its tenant, and that of its key inside the tenant, on by its
charge: its expected run time, divided by the weight. When the run ends, both ranks move by the
difference between the time it took and the charge. A run that takes longer than its charge is
charged its time so far, and again each time that has grown by a quarter. So a run that never ends
costs its key what it takes.

A difference that moves a rank below the virtual time is saved: the next triggers of the flow may
start there. Otherwise a flow whose charges are too high would lose the differences. Nothing else is
saved: a flow that was idle or held back by limits starts at the virtual time, because a flow whose
triggers may run is never further below the virtual time than its savings.

The bound. Let two tenants, f and m, both have triggers in the table that may run throughout an
interval, and let S be the total run time of the triggers of a tenant that start in it. Then

    | S_f / w_f - S_m / w_m |  <=  (c_f + 5 u_f) / w_f + (c_m + 5 u_m) / w_m

where c is the greatest charge of one trigger of the tenant, and u its greatest uncertainty at one
moment: the sum of |took - charged| over its current runs. With exact charges u is 0, and this is
the bound of start-time fair queueing, in seconds. Why: let t(k) be the rank of k. Over the interval
t(k) advances by S_k / w_k, except for the uncertainty at its two ends (2 u). And t(f) is never
further above t(m) than c_f + u_f + 2 u_m: when f last started, t(f) was not above t(m); since then
f has advanced by its charge and by differences, and m has gone back by differences at most. For two
keys of one tenant the same holds, with the weights of the keys, in the ranks inside the tenant. The
bound holds while the unit of run times does not change, and no flow owes or has saved more than
MOST_OWED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from fairlead.core.fair.passes import STRIDE_SCALE
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.tenants import key_weight, tenant_weight
from fairlead.core.triggers.flows import FairLane, Flow, Member, TenantFlow, VirtualTime
from fairlead.model import Trigger

if TYPE_CHECKING:
    from fairlead.core.triggers.columns import Cell

MOST_OWED = 1000
"""Maximum number of units (mean runs of the queue), divided by its weight, that a flow is ahead of
the virtual time or has saved. A run that hangs delays its key by no more; the excess is dropped."""

_GROWTH = 0.25
"""Part of its time so far by which a run grows before it is charged again."""

_LEAST_GROWTH = 0.01
"""Seconds by which a run grows at least before it is charged again."""

_FEWEST = 1000
"""Number of runs of a meter below which ended ones are not dropped before their time."""


class Run:
    """A run that is charged."""

    __slots__ = ("charge", "lane", "since", "trigger")

    def __init__(self, trigger: Trigger, lane: TimedLane, charge: int, since: float) -> None:
        self.trigger = trigger
        self.lane = lane
        self.charge = charge
        """Virtual time at weight 1."""
        self.since = since
        """Start, in monotonic seconds."""

    @property
    def is_current(self) -> bool:
        """Whether the run has not ended, and its lane was not dropped."""
        return self.lane.runs.get(_identity(self.trigger)) is self


class RunMeter:
    """Current runs of all timed lanes of a table, by the time at which they exceed their
    charges."""

    def __init__(self) -> None:
        self.now = 0.0
        """Monotonic seconds of the last `overdue`."""
        self._due: list[tuple[float, int, Run]] = []
        """Heap of the runs; those that have ended are skipped."""
        self._most = _FEWEST
        """Size of the heap at which ended runs are dropped."""
        self._numbers = count()

    def begin(self, run: Run) -> None:
        """Note that a run began, or was charged its time so far."""
        so_far = self.now - run.since
        expected = run.lane.run_times.expected(run.trigger.name, run.trigger.fairness_key) / 1e6
        at = run.since + max(expected, so_far + _LEAST_GROWTH, so_far * (1 + _GROWTH))
        heappush(self._due, (at, next(self._numbers), run))
        if len(self._due) > self._most:
            self._due[:] = [each for each in self._due if each[2].is_current]
            heapify(self._due)
            self._most = max(_FEWEST, 2 * len(self._due))

    def overdue(self, now: float) -> Iterator[tuple[Run, int]]:
        """Yield the runs that have taken longer than their charges, with the difference in virtual
        time at weight 1. `now`: monotonic seconds."""
        self.now, due = now, self._due
        while due and due[0][0] <= now:
            run = heappop(due)[2]
            if not run.is_current:
                continue
            so_far = run.lane.run_times.virtual(round((now - run.since) * 1e6))
            if (more := so_far - run.charge) > 0:
                run.charge = so_far
                yield run, more
            self.begin(run)


class Account:
    """Run time of a flow, or of a key inside its tenant."""

    __slots__ = ("running", "saved", "weight")

    def __init__(self) -> None:
        self.running = 0
        """Number of current runs."""
        self.saved = 0
        """Virtual time below the current one from which the next trigger may start."""
        self.weight = 1.0
        """Weight of the last charge."""

    def start(self, rank: int, now: int, charge: int, weight: float) -> tuple[int, int]:
        """Return the virtual time at which a trigger starts, and the rank that follows. `now`: the
        virtual time. `charge`: of the trigger, at weight 1."""
        if rank < now - self.saved:
            rank = now
        self.saved = max(0, now - rank)
        self.weight = weight
        self.running += charge > 0
        return rank, rank + max(1, round(charge / weight))

    def move(self, rank: int, more: int, now: int) -> int:
        """Return the rank after a difference of `more` virtual time at weight 1."""
        most = round(MOST_OWED * STRIDE_SCALE / self.weight)
        moved = rank + round(more / self.weight)
        if more > 0:
            moved = min(moved, max(rank, now + most))
        saved = self.saved + max(0, now - moved) - max(0, now - rank)
        self.saved = max(0, min(saved, most))
        return moved

    def reweigh(self, rank: int, weight: float, now: int) -> int:
        """Return the rank at a new weight, at which the flow owes or has saved as much run time as
        before."""
        if rank < now - self.saved:
            rank, self.saved = now, 0
        ratio, self.weight = self.weight / weight, weight
        moved = now + round((rank - now) * ratio)
        self.saved = max(round(self.saved * ratio), now - moved)
        return moved


class TimedLane(FairLane):
    """Flows of one fair lane that shares run time."""

    __slots__ = ("meter", "run_times", "runs")

    def __init__(
        self,
        priority: int,
        time: VirtualTime,
        weights: Mapping[str, float],
        turns: Mapping[str, int],
        run_times: RunTimes,
        meter: RunMeter,
    ) -> None:
        super().__init__(priority, time, weights, turns)
        self.run_times = run_times
        self.meter = meter
        self.runs: dict[tuple[str, int], Run] = {}
        """Current runs by task id and version."""

    def step(self, trigger: Trigger, weight: float) -> int:
        return max(1, round(self._charge(trigger) / weight))

    def begin(self, trigger: Trigger) -> int:
        """Note that a trigger starts; return its charge, or 0 for a second trigger of a task, whose
        claim will be refused."""
        if _identity(trigger) in self.runs:
            return 0
        run = self.runs[_identity(trigger)] = Run(
            trigger, self, self._charge(trigger), self.meter.now
        )
        self.meter.begin(run)
        return run.charge

    def ended(self, trigger: Trigger, cost: int) -> TimedFlow | TimedTenantFlow | None:
        """Charge a run of `cost` microseconds; 0 for one that never began. Return the flow, whose
        rank may have moved; None if the run is unknown, because it began under an earlier owner or
        with another trigger of the task."""
        run = self.runs.get(_identity(trigger))
        if run is None or (not cost and run.trigger.level != trigger.level):
            return None
        del self.runs[_identity(trigger)]
        return self.move(trigger, self.run_times.virtual(cost) - run.charge, is_end=True)

    def move(
        self, trigger: Trigger, more: int, is_end: bool = False
    ) -> TimedFlow | TimedTenantFlow:
        """Move the ranks of the key of a run by a difference of virtual time at weight 1; return
        the flow, which is never dropped before its runs end. `is_end`: whether the run has
        ended."""
        flow = self.find(trigger.fairness_key)
        assert isinstance(flow, TimedFlow | TimedTenantFlow)
        flow.move(trigger.fairness_key, more, is_end)
        return flow

    def _charge(self, trigger: Trigger) -> int:
        return self.run_times.charge(trigger.name, trigger.fairness_key)

    def _new_flow(self, tenant: str, is_path: bool, before: Flow | None, rank: int) -> Flow:
        if not is_path:
            return TimedFlow(tenant, self, rank)
        flow = TimedTenantFlow(tenant, self, rank)
        if isinstance(before, TimedFlow):
            flow.account = before.account
            flow.begin_member(tenant)
            flow.members[tenant].account.running = before.account.running
        return flow


class AccountedFlow(Flow):
    """Triggers with an account, which remains while a run of them is charged."""

    __slots__ = ()

    lane: TimedLane
    account: Account

    def __init__(self, key: str, lane: TimedLane, rank: int) -> None:
        super().__init__(key, lane, rank)
        self.account = Account()  # type: ignore[misc]  # a slot of each class below

    @property
    def is_idle(self) -> bool:
        return self.cells is None and not self.account.running

    def add(self, cell: Cell) -> None:
        if self.cells is None:
            self.account.saved = 0
        super().add(cell)


class TimedFlow(AccountedFlow):
    """Triggers of one key, which is no path."""

    __slots__ = ("account",)

    def reweigh(self, key: str) -> None:
        lane = self.lane
        self.rank = self.account.reweigh(self.rank, lane.weights.get(key, 1.0), lane.time.now)

    def ran(self, trigger: Trigger) -> None:
        lane, time = self.lane, self.lane.time
        weight = lane.weights.get(self.key, trigger.weight)
        charge = lane.begin(trigger)
        start, self.rank = self.account.start(self.rank, time.now, charge, weight)
        time.now = max(time.now, start)
        lane.started(trigger)

    def move(self, key: str, more: int, is_end: bool) -> None:
        """Move the rank by a difference of virtual time at weight 1, of a run of a key."""
        self.account.running -= is_end
        self.rank = self.account.move(self.rank, more, self.lane.time.now)

    def moved_cells(self, key: str) -> Iterable[Cell]:
        """Return the cells that may be elsewhere in the order after a move."""
        return [*self.in_columns] if isinstance(self.cells, dict) else self.all_cells()


class TimedMember(Member):
    """A key of a tenant, with its account inside the tenant."""

    __slots__ = ("account",)

    def __init__(self, key: str, rank: int) -> None:
        super().__init__(key, rank)
        self.account = Account()

    @property
    def is_idle(self) -> bool:
        return not self.cells and not self.account.running


class TimedTenantFlow(AccountedFlow, TenantFlow):
    """Triggers of a tenant of which a key is a path."""

    __slots__ = ("account",)

    members: dict[str, TimedMember]  # type: ignore[assignment]

    def member(self, key: str, first: Trigger) -> TimedMember:
        member = super().member(key, first)
        assert isinstance(member, TimedMember)
        if not member.cells:
            member.account.saved = 0
        return member

    def reweigh(self, key: str) -> None:
        lane, weight = self.lane, self.lane.weights.get(key, 1.0)
        if key == self.key:
            self.rank = self.account.reweigh(self.rank, weight, lane.time.now)
        elif (member := self.members.get(key)) is not None:
            member.rank = member.account.reweigh(member.rank, weight, self.now)
            member.moved()

    def ran(self, trigger: Trigger) -> None:
        lane, time, key = self.lane, self.lane.time, trigger.fairness_key
        charge, member = lane.begin(trigger), self.members[key]
        weight = tenant_weight(lane.weights, self.key, key, trigger.weight)
        start, self.rank = self.account.start(self.rank, time.now, charge, weight)
        time.now = max(time.now, start)
        weight = key_weight(lane.weights, self.key, key, trigger.weight)
        start, member.rank = member.account.start(member.rank, self.now, charge, weight)
        self.now = max(self.now, start)
        self._note_turn(member)
        lane.started(trigger)

    def move(self, key: str, more: int, is_end: bool) -> None:
        """Move the ranks of the tenant and of a key by a difference of virtual time at weight 1, of
        a run of the key."""
        self.account.running -= is_end
        self.rank = self.account.move(self.rank, more, self.lane.time.now)
        member = self.members[key]
        member.account.running -= is_end
        member.rank = member.account.move(member.rank, more, self.now)
        member.moved()

    def moved_cells(self, key: str) -> Iterable[Cell]:
        """Return the cells that may be elsewhere in the order after a move of a key: of the others
        in the heads of this flow, only those that have triggers of the key."""
        if not isinstance(self.cells, dict):
            return self.all_cells()
        of_key = (row.cell for row in self.members[key].cells)
        return dict.fromkeys([*self.in_columns, *of_key])

    def _new_member(self, key: str) -> TimedMember:
        return TimedMember(key, self.now)


def _identity(trigger: Trigger) -> tuple[str, int]:
    return trigger.id, trigger.version
