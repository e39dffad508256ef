"""Flows of start-time fair queueing (Goyal, Vin and Cheng 1996): a flow for each tenant of a fair
lane, with one rank for all its triggers. A fairness key that is no path is a tenant of its own.

The rank of a flow is its next start tag. A trigger that runs starts at the rank, or at the virtual
time if that is later, and moves the rank one stride beyond its start. So waiting costs a key
nothing, and a key that a limit held back does not catch up on what it could not use. The keys of a
tenant have ranks of the same kind, in a virtual time of the tenant.

A flow that is new, or comes back behind the virtual time, starts at the virtual time. Three rules
put many of these in order (`Group`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from fairlead.core.fair.accounts import Account
from fairlead.core.fair.charged_runs import ChargedRun, ChargedRuns
from fairlead.core.fair.groups import Group, Scope, key_weight, tenant_weight
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.strides import STRIDE_SCALE, step
from fairlead.model import Trigger, tenant_of

if TYPE_CHECKING:
    from fairlead.core.fair.columns import Cell, Order
    from fairlead.core.fair.tenant_cells import KeyCell

MOST_IDLE = 50_000
"""Keys without triggers in the table whose ranks a lane keeps. If there are more, those that are
least ahead of the virtual time are dropped, and may gain one stride."""

_FEWEST = 1000
"""Number of flows and members below which idle ones are not dropped."""

CellLevel = tuple[int, int, int, "Cell"]
"""(pass, id, number of its first trigger, cell): the order of a cell in its flow. A cell of a
tenant with several keys has (rank of the first key, its level in one number, number, cell)."""


class FairLane:
    """Flows of one lane, by tenant. A lane in the order of arrival has one flow, of the key ""."""

    __slots__ = (
        "_most",
        "flows",
        "is_fair",
        "priority",
        "run_times",
        "runs",
        "size",
        "tenants",
        "time",
        "weights",
    )

    def __init__(
        self,
        priority: int,
        time: Scope,
        weights: Mapping[str, float] | None,
        runs: ChargedRuns,
        run_times: RunTimes | None = None,
    ) -> None:
        """`time`: virtual time of the priority, which all its lanes share. `weights`: weights set
        at run time, by key, which may change at any time; None for the order of arrival. `runs`:
        current runs of all lanes. `run_times`: expected ones; None counts each task as one."""
        self.priority = priority
        self.time = time
        self.is_fair = weights is not None
        self.weights = _ARRIVAL if weights is None else weights
        self.runs = runs
        self.run_times = run_times
        self.flows: dict[str, Flow] = {}
        """Flows with triggers in the table, and idle ones, until `_tidy` drops them."""
        self.tenants = Group(time, self.flows, lambda tenant: self.weights.get(tenant, 1.0))
        self.size = 0
        """Number of flows and members of tenants."""
        self._most = _FEWEST
        """Size at which idle flows and members are dropped."""

    def key(self, trigger: Trigger) -> str:
        """Return the key by which a trigger has its place in the order."""
        return trigger.fairness_key if self.is_fair else ""

    def open(self, trigger: Trigger) -> Flow:
        """Return the flow of the trigger's key, which is no tenant with a flow: a new one, or that
        of the tenant. The flow of a tenant that has had no paths yet is replaced: the caller moves
        its cells."""
        if self.size >= self._most:
            self._tidy()
        key = self.key(trigger)
        tenant = tenant_of(key)
        found = self.flows.get(tenant)
        if isinstance(found, TenantFlow):
            return found
        flow = self.flows[tenant] = (Flow if tenant == key else TenantFlow)(tenant, self)
        if found is None:
            self.size += 1
            flow.weight = tenant_weight(self.weights, tenant, key, trigger.weight)
            return flow
        flow.continue_from(found)
        if isinstance(flow, TenantFlow) and found.running:
            flow.begin_member(tenant).running = found.running
        return flow

    def step(self, trigger: Trigger, weight: float) -> int:
        """Return the virtual time from a trigger to the next of its tenant, or key, of this
        weight."""
        if self.run_times is None:
            return step(STRIDE_SCALE, weight)
        return step(self.run_times.charge(trigger.name, trigger.fairness_key), weight)

    def keys(self, tenant: str) -> Group:
        """Return the keys of a tenant; a group without accounts if the tenant has no path here."""
        if isinstance(flow := self.flows.get(tenant), TenantFlow):
            return flow.keys
        return Group(Scope(), {}, lambda key: key_weight(self.weights, tenant, key, 1.0))

    def begin(self, trigger: Trigger) -> int:
        """Note that a trigger starts; return its charge. A second trigger of a task, whose claim
        will be refused, is charged 0 in a lane that shares run time."""
        if self.run_times is None:
            return STRIDE_SCALE
        run = self.runs.begin(trigger, self, self.run_times)
        if run is None:
            return 0
        self._count_run(trigger, 1)
        return run.charge

    def ended(self, run: ChargedRun, cost: int) -> Flow:
        """Charge a run of `cost` microseconds; 0 for one that never began. Return the flow, whose
        rank may have moved."""
        self._count_run(run.trigger, -1)
        return self.correct(run, run.run_times.virtual(cost) - run.charge)

    def correct(self, run: ChargedRun, more: int) -> Flow:
        """Correct the charge of a run by a difference of virtual time at weight 1; return the flow,
        which is never dropped before its runs end."""
        key = run.trigger.fairness_key
        flow = self.find(key)
        assert flow is not None
        flow.correct(key, more)
        return flow

    def _count_run(self, trigger: Trigger, change: int) -> None:
        flow = self.find(trigger.fairness_key)
        assert flow is not None
        flow.running += change
        if isinstance(flow, TenantFlow):
            flow.members[trigger.fairness_key].running += change

    def in_order(self, triggers: Iterable[Trigger]) -> list[Trigger]:
        """Return triggers of the lane in the order in which they would start if no limit were full,
        as far as it is known: by their start tags, as if no others waited."""
        found = sorted(triggers, key=lambda each: each.level or (0, each.seq))
        if any(tenant_of(key) != key for key in {self.key(each) for each in found}):
            found = _by_tag(found, self.key, lambda key: self.keys(tenant_of(key)))
        return _by_tag(found, lambda each: tenant_of(self.key(each)), lambda tenant: self.tenants)

    def find(self, key: str) -> Flow | None:
        """Return the flow of a key, if there is one."""
        return self.flows.get(key) or self.flows.get(tenant_of(key))

    def _tidy(self) -> None:
        """Drop idle flows and members whose rank the virtual time has passed: they start at the
        virtual time again. Of the others keep those furthest ahead."""
        groups: list[tuple[dict[str, Flow] | dict[str, Member], Scope]] = [(self.flows, self.time)]
        for flow in self.flows.values():
            if isinstance(flow, TenantFlow):
                groups.append((flow.members, flow.time))
        idle = sorted(
            (each.rank - time.now, number, key)
            for number, (accounts, time) in enumerate(groups)
            for key, each in accounts.items()
            if each.is_idle
        )
        passed = bisect_left(idle, (1,))
        for _, number, key in idle[: max(passed, len(idle) - MOST_IDLE)]:
            del groups[number][0][key]
        self.size = sum(len(accounts) for accounts, _ in groups)
        self._most = max(_FEWEST, 2 * self.size)


class Flow(Account):
    """Triggers of one key, in cells: one for each column in which the key has triggers.

    `heads` has the cells whose columns were open when last seen, by the level of the first trigger.
    The others are in the heads of their columns.
    """

    __slots__ = ("count", "heads", "key", "lane", "only", "position", "waiting")

    def __init__(self, key: str, lane: FairLane) -> None:
        super().__init__()
        self.key = key
        self.lane = lane
        self.count = 0
        """Number of cells."""
        self.heads: list[CellLevel] = _NO_HEADS
        """Heap of cells; those that have left are skipped."""
        self.only: Cell | None = None
        """The cell that is here instead of in `heads`, while there is one only."""
        self.waiting: dict[Cell, None] = _NO_CELLS
        """Cells that are in the heads of their columns."""
        self.position: Order | None = None
        """Position among the ready flows and columns. Older positions of the flow that are still
        among them are stale."""

    def __lt__(self, other: object) -> bool:
        """Return False: positions of equal order come in any order."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether the flow may be dropped."""
        return not self.count and not self.running

    def add(self, cell: Cell) -> None:
        """Add a cell in a column in which the flow has none."""
        if not self.count:
            self.saved = 0
            lane, trigger = self.lane, cell.first[3]
            if self.rank < lane.time.now:
                about = (lane.weights, self.key, trigger.fairness_key, trigger.weight)
                most = lane.step(trigger, tenant_weight(*about))
                self.rank = lane.tenants.first_rank(self.key, most)
        self.count += 1

    def remove(self, cell: Cell) -> None:
        """Remove a cell without triggers."""
        self.count -= 1
        self.leave(cell)
        self.waiting.pop(cell, None)
        if not self.count:
            self.heads, self.waiting, self.position = _NO_HEADS, _NO_CELLS, None

    def wait(self, cell: Cell) -> None:
        """Note that a cell is in the heads of its column."""
        self.leave(cell)
        if not self.waiting:
            self.waiting = {}
        self.waiting[cell] = None

    def leave(self, cell: Cell) -> None:
        """Note that a cell leaves `heads`. The caller gives it another position."""
        if self.only is cell:
            self.only = None

    def put(self, cell: Cell) -> bool:
        """Put a cell into `heads`, or at its new position there; return whether it is the first."""
        self.waiting.pop(cell, None)
        if not self.heads and (self.only is None or self.only is cell):
            self.only, cell.position = cell, None
            return True
        if self.only is not None:
            first, self.only = self.only, None
            first.position = first.place()
            self.heads = [first.position]
        place = cell.position = cell.place()
        heappush(self.heads, place)
        return self.heads[0] is place

    def first(self) -> Cell | None:
        """Return the cell with the lowest level in `heads`."""
        heads = self.heads
        while heads:
            cell = heads[0][3]
            if cell.position is heads[0]:
                return cell
            heappop(heads)
        return self.only

    def started(self, cell: Cell) -> None:
        """Note that the first trigger of the first cell in `heads` has started."""
        if self.only is not cell:
            place = cell.position = cell.place()
            heapreplace(self.heads, place)

    def set_weight(self, key: str) -> None:
        """Let the new weight of a key act. The caller moves the flow."""
        self.reweigh(self.lane.weights.get(key), self.lane.time.now)

    def ran(self, trigger: Trigger) -> None:
        """Record that a trigger of the flow has started."""
        lane = self.lane
        time, weights = lane.time, lane.weights
        self.weight = weights.get(self.key, trigger.weight) if weights else trigger.weight
        charge = STRIDE_SCALE
        if lane.run_times is not None:
            charge = lane.begin(trigger)
            self.charge = charge or self.charge
        start = self.start(time.now, charge)
        if start > time.now:
            time.now = start
        time.started()

    def correct(self, key: str, more: int) -> None:
        """Correct the charge of a run of a key by a difference of virtual time at weight 1."""
        self.move(more, self.lane.time.now)


class TenantFlow(Flow):
    """Triggers of a tenant of which a key is a path, in cells of `tenant_cells`."""

    __slots__ = ("keys", "members", "time")

    def __init__(self, key: str, lane: FairLane) -> None:
        super().__init__(key, lane)
        self.time = Scope()
        self.members: dict[str, Member] = {}
        """Keys with triggers in cells, and idle ones."""
        about = (lane.weights, key)
        self.keys = Group(self.time, self.members, lambda name: key_weight(*about, name, 1.0))

    def member(self, key: str, first: Trigger) -> Member:
        """Return a key of the tenant that gets one more cell. `first`: its first trigger there."""
        member = self.members.get(key)
        if member is None:
            member = self.begin_member(key)
            member.weight = key_weight(self.lane.weights, self.key, key, first.weight)
        if not member.cells:
            member.saved = 0
            if member.rank < self.time.now:
                member.rank = self.keys.first_rank(key, self.lane.step(first, member.weight))
        return member

    def begin_member(self, key: str) -> Member:
        """Return a new key of the tenant."""
        member = self.members[key] = Member(key)
        self.lane.size += 1
        return member

    def set_weight(self, key: str) -> None:
        if key == self.key:
            super().set_weight(key)
        elif (member := self.members.get(key)) is not None:
            member.reweigh(self.lane.weights.get(key), self.time.now)
            member.moved()

    def ran(self, trigger: Trigger) -> None:
        lane, key = self.lane, trigger.fairness_key
        about = (lane.weights, self.key, key, trigger.weight)
        charge, member = lane.begin(trigger), self.members[key]
        self.weight, member.weight = tenant_weight(*about), key_weight(*about)
        self.charge = charge or self.charge
        member.charge = charge or member.charge
        lane.time.now = max(lane.time.now, self.start(lane.time.now, charge))
        self.time.now = max(self.time.now, member.start(self.time.now, charge))
        self.time.started()
        lane.time.started()

    def correct(self, key: str, more: int) -> None:
        super().correct(key, more)
        self.members[key].move(more, self.time.now)
        self.members[key].moved()

    def remove(self, cell: Cell) -> None:
        cell.leave()
        super().remove(cell)


class Member(Account):
    """A key of a tenant, with its account inside the tenant."""

    __slots__ = ("cells", "key")

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.cells: list[KeyCell] = []
        """Triggers of the key: one for each column in which it has triggers."""

    @property
    def is_idle(self) -> bool:
        """Whether the key may be dropped."""
        return not self.cells and not self.running

    def moved(self) -> None:
        """Find the first triggers of its cells after the rank has moved."""
        for row in self.cells:
            row.cell.move(row)


_ARRIVAL = {"": 1.0}
"""Weights of a lane in the order of arrival."""

_NO_HEADS: list[CellLevel] = []
"""`heads` of every flow with at most one such cell."""

_NO_CELLS: dict[Cell, None] = {}
"""`waiting` of every flow without such cells."""


def _by_tag(
    triggers: Sequence[Trigger],
    name_of: Callable[[Trigger], str],
    group_of: Callable[[str], Group],
) -> list[Trigger]:
    """Sort triggers by the start tags that they have in the groups of their names."""
    names = [*map(name_of, triggers)]
    tags = {name: group_of(name).tag(name, 0) for name in dict.fromkeys(names)}
    steps = {name: group_of(name).tag(name, 1) - tag for name, tag in tags.items()}
    found: list[tuple[int, int]] = []
    for number, name in enumerate(names):
        found.append((tags[name], number))
        tags[name] += steps[name]
    return [triggers[number] for _, number in sorted(found)]
