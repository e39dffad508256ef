"""The board of the trigger table: columns and flows in the order in which they are tried, and the
columns that wait for a limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from heapq import heappop, heappush

from fairlead.core.fair.charged_runs import RunMeter
from fairlead.core.fair.columns import Cell, Column, Order, Parked, Position, Strand
from fairlead.core.fair.entries import Entry
from fairlead.core.fair.flows import FairLane, Flow, Scope, TenantFlow
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.tenant_cells import TenantCell
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.model import PartitionKey, Trigger, TriggerPath, tenant_of

LaneName = tuple[str, int, int]
"""(queue, partition, priority), with one of these instead of a partition:"""

GRANTED = -1
"""Stands for what other nodes grant."""

ALL = -2
"""Stands for all partitions of a fifo queue."""


class Board:
    """Columns of triggers, by priority and by the limits that stop them, and the flows of fair
    lanes.

    Each cell is in the heads of its column or of its flow. While heads have a cell that may be
    tried, the column or flow is among the ready ones, at the order of the first of these cells or
    before.
    """

    def __init__(self, slot_ledger: SlotLedger) -> None:
        self._slot_ledger = slot_ledger
        self.columns: dict[tuple[int, Hashable], Column] = {}
        self.ready: list[Position] = []
        self.paused: dict[str, list[Column]] = {}
        self.times: defaultdict[int, Scope] = defaultdict(Scope)
        """Virtual time by priority."""
        self.lanes: dict[LaneName, FairLane] = {}
        self.weights: dict[str, Mapping[str, float]] = {}
        """Weights set at run time, by fair queue."""
        self.run_times: dict[str, RunTimes] = {}
        """Mean run times, by queue that shares run time."""
        self.meter = RunMeter()
        self.strands: defaultdict[Hashable, list[Strand]] = defaultdict(list)
        """Strands by ordering key."""
        self._parked = Parked()
        self._full: dict[Hashable, Column] = {}
        """Parked column by column key; columns of lower priorities wait behind it."""

    # triggers -------------------------------------------------------------------------------------

    def insert(self, trigger: Trigger, number: int) -> None:
        """Add a trigger to its column. `number`: grows with each new one."""
        key = (trigger.priority, self._slot_ledger.column(trigger))
        column = self.columns.get(key)
        if column is None:
            column = self.columns[key] = Column(*key, trigger.queue)
        if trigger.ordering_key is None:
            self._add(column, trigger, number)
            return
        entry = (trigger.order_at, trigger.id, number, trigger, None)
        strand = column.strands.get(trigger.ordering_key)
        if strand is None:
            ordering_key = OrderingKey(trigger.queue, trigger.ordering_key)
            strand = column.strands[trigger.ordering_key] = Strand(entry, ordering_key, column)
            self.strands[ordering_key].append(strand)
        elif not strand.add(entry):
            return
        self.enter(strand)

    def _add(
        self, column: Column, trigger: Trigger, number: int, strand: Strand | None = None
    ) -> Entry:
        """Add a trigger to its cell; return its entry."""
        if trigger.path == TriggerPath.GRANT:  # in the order of the node that granted it
            pass_, id = 0, 0
        else:
            pass_, id = (0, trigger.seq) if trigger.level is None else trigger.level
        entry: Entry = (pass_, id, number, trigger, strand)
        lane = self.lane(_lane_of(trigger))
        flow = lane.flows.get(lane.key(trigger))
        if flow is None:
            flow = self._open_flow(lane, trigger)
        cell = flow.cell(column)
        if cell is None:
            self._put_new([entry], column, flow)
        elif cell.add(entry):
            self.put(cell)
        return entry

    def _put_new(self, entries: list[Entry], column: Column, flow: Flow) -> None:
        """Put these entries into a new cell."""
        if isinstance(flow, TenantFlow):
            cell: Cell = TenantCell(entries, column, flow)
        else:
            cell = Cell(entries[0], column, flow)
        flow.add(cell)
        self.put(cell)

    def _open_flow(self, lane: FairLane, trigger: Trigger) -> Flow:
        """Return the flow of the trigger's key, which is no tenant with a flow. A tenant gets
        another flow, with the cells of the one before, once there is a path."""
        before = lane.flows.get(tenant_of(lane.key(trigger)))
        flow = lane.open(trigger)
        if before is not None and before is not flow:
            before.position = None
            for cell in before.all_cells():
                entries = [*cell]
                self.drop(cell)
                self._put_new(entries, cell.column, flow)
        return flow

    def reweigh(self, name: LaneName, keys: Iterable[str]) -> None:
        """Move these keys of a fair lane forward, after their weights have changed."""
        if (lane := self.lanes.get(name)) is None:
            return
        for key in keys:
            flow = lane.flows.get(tenant_of(key))
            if flow is None:
                continue
            flow.set_weight(key)
            for cell in flow.all_cells():
                self.put(cell)
            if flow.position is not None and (first := flow.first()) is not None:
                self.offer(flow, first.order())

    def lane(self, name: LaneName) -> FairLane:
        """Return a lane, made if needed."""
        lane = self.lanes.get(name)
        if lane is None:
            queue, partition, priority = name
            weights, run_times = self.weights.get(queue), self.run_times.get(queue)
            if weights is None and partition >= 0:
                lane = self.lanes[name] = self.lane((queue, ALL, priority))
                return lane
            timing = None if run_times is None else (run_times, self.meter)
            if partition == GRANTED:
                weights = timing = None
            lane = self.lanes[name] = FairLane(priority, self.times[priority], weights, timing)
        return lane

    def drop_lanes(self, partitions: Collection[PartitionKey]) -> None:
        """Drop the lanes of these partitions, which have no triggers. Their runs are charged no
        more."""
        for name in [name for name in self.lanes if name[:2] in partitions]:
            self.lanes.pop(name).runs.clear()

    def ended(self, trigger: Trigger, cost: int) -> None:
        """Charge a run of `cost` microseconds to its key, if its lane shares run time; 0 for one
        that never began."""
        lane = self.lanes.get((trigger.queue, trigger.partition, trigger.priority))
        if lane is not None and (flow := lane.ended(trigger, cost)) is not None:
            self._moved(flow, trigger.fairness_key)

    def charge_overdue(self, now: float) -> None:
        """Charge the runs that have taken longer than expected. `now`: monotonic seconds."""
        for run, more in self.meter.overdue(now):
            self._moved(run.lane.correct(run.trigger, more), run.trigger.fairness_key)

    def _moved(self, flow: Flow, key: str) -> None:
        """Put the cells of a flow in order after its rank, or that of a key, has moved. Heads whose
        ranks are too low are found later."""
        for cell in flow.moved_cells(key):
            position = cell.position
            assert position is not None
            if cell in cell.column.afloat:
                has_moved = cell.place()[:3] != position[:3]
            else:
                has_moved = not cell.is_shared or cell.order()[:3] < position[:3]
            if has_moved:
                self.put(cell)
        if flow.position is not None and (first := flow.first()) is not None:
            order = first.order()
            if order < flow.position[1]:
                self.offer(flow, order)

    def find(self, trigger: Trigger) -> Cell | Strand | None:
        """Return the entries that have the trigger, if it is here."""
        column = self.columns.get((trigger.priority, self._slot_ledger.column(trigger)))
        if column is None:
            return None
        if trigger.ordering_key is not None:
            return column.strands.get(trigger.ordering_key)
        lane = self.lanes.get(_lane_of(trigger))
        flow = None if lane is None else lane.find(lane.key(trigger))
        return None if flow is None else flow.cell(column)

    def keep(self, found: Cell | Strand, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers of a cell or strand for which `is_kept` is false. Those of
        a cell that belong to strands stay."""
        first = found.first
        if isinstance(found, Strand):
            removed = found.keep(is_kept)
            if not is_kept(found.first[3]):
                self.drop_strand(found)
            elif found.first is not first and found.head is not None:
                self.enter(found)
            return removed

        def stays(trigger: Trigger) -> bool:
            return trigger.ordering_key is not None or is_kept(trigger)

        removed = found.keep(stays)
        if not stays(found.first[3]):
            self.drop(found)
        elif found.first is not first:
            self.put(found)
        return removed

    def take_out(self, column: Column) -> list[tuple[Trigger, int]]:
        """Remove a column with its triggers; return them as `insert` takes them."""
        found: list[tuple[Trigger, int]] = []
        for cell in column.cells():
            found += [(entry[3], entry[2]) for entry in cell if entry[4] is None]
            self.drop(cell)
        for strand in [*column.strands.values()]:
            found += [(entry[3], entry[2]) for entry in strand]
            self.drop_strand(strand)
        self.delete(column)
        return found

    # strands --------------------------------------------------------------------------------------

    def enter(self, strand: Strand) -> None:
        """Put the first trigger of a strand into a cell."""
        _, _, number, trigger, _ = strand.first
        strand.head = self._add(strand.column, trigger, number, strand)

    def try_again(self, ordering_key: Hashable) -> None:
        """Offer the strands that wait for an ordering key."""
        for strand in self.strands.get(ordering_key, ()):
            if strand.head is None:
                self.enter(strand)

    def drop_strand(self, strand: Strand) -> None:
        """Drop a strand without triggers."""
        strand.head = None
        del strand.column.strands[strand.ordering_key.ordering_key]
        left = self.strands[strand.ordering_key]
        left.remove(strand)
        if not left:
            del self.strands[strand.ordering_key]

    # cells ----------------------------------------------------------------------------------------

    def put(self, cell: Cell, is_lent: bool = False) -> None:
        """Put a cell at its position, by its first trigger. `is_lent`: in its column."""
        column, flow = cell.column, cell.flow
        if is_lent or not cell.is_shared or not column.is_open:
            if cell.is_shared:
                flow.in_columns[cell] = None
                column.afloat.discard(cell)
            order = cell.position = cell.order()
            column.heads.push(order)
            if column.heads.first is order and (column.is_open or not is_lent):
                self._move_up(column)  # after `pass_over` for another node, a parked one stays
            return
        position = cell.position = cell.place()
        flow.in_columns.pop(cell, None)
        column.afloat.add(cell)
        heappush(flow.heads, position)
        if flow.position is None or flow.heads[0] is position:
            self.offer(flow, cell.order())

    def drop(self, cell: Cell) -> None:
        """Drop a cell without triggers."""
        cell.position = None
        cell.column.afloat.discard(cell)
        cell.flow.remove(cell)

    def pass_over(self, cell: Cell, is_lent: bool = False) -> None:
        """Remove the first entry of a cell, whose strand waits or begins with another trigger."""
        cell.position = None
        if cell.pop() is None:
            self.drop(cell)
        else:
            self.put(cell, is_lent)

    def first_of_column(self, column: Column, is_lent: bool = False) -> Order | None:
        """Return the order of the first cell in the heads of a column, after moving those that have
        a later order or belong elsewhere. `is_lent`: return what another node may run."""
        heads = column.heads
        while (head := heads.first) is not None:
            cell = head[3]
            if cell.position is not head:
                heads.pop()
                continue
            entry = cell.first
            strand: Strand | None = entry[4]
            if strand is not None:
                is_head = strand.head is entry
                if is_head and is_lent and not self._slot_ledger.may_have_key(entry[3]):
                    strand.head, is_head = None, False
                if not is_head:
                    heads.pop()
                    self.pass_over(cell, is_lent)
                    continue
            if not cell.is_shared:
                return head
            order = cell.order()
            is_current = head[:3] == order[:3]
            if not is_current and (is_lent or column.released_by is not None):
                # The column keeps the cell, because it may have to wait for its limit again.
                cell.position = order
                heads.replace(order)
                continue
            if is_current:
                leader = None if is_lent else cell.flow.first()
                if leader is None or cell.place() < leader.place():
                    return head
            heads.pop()
            self.put(cell)
        return None

    def first_of_flow(self, flow: Flow) -> Order | None:
        """Return the order of the first cell in the heads of a flow, after moving those whose
        columns are closed."""
        while (cell := flow.first()) is not None:
            strand: Strand | None = cell.first[4]
            if strand is not None and strand.head is not cell.first:
                heappop(flow.heads)
                self.pass_over(cell)
                self.tidy(cell.column)
            elif self.may_try(cell.column):
                return cell.order()
            else:
                heappop(flow.heads)
                self.put(cell)
        return None

    # columns --------------------------------------------------------------------------------------

    def offer(
        self, source: Column | Flow, order: tuple[int, int, int, object] | None = None
    ) -> None:
        """Put a column or flow among the ready ones. `order`: of its first cell, if known."""
        if isinstance(source, Flow):
            assert order is not None
            priority = source.lane.priority
        else:
            priority, source.is_open, source.is_held = source.priority, True, False
            order = order or source.heads.first
        position: Position = (priority, order or _NOWHERE, source)
        source.position = position
        heappush(self.ready, position)

    def settle(self, column: Column) -> None:
        """Move the cells of a column that are in the heads of their flows into those of the
        column."""
        if column.afloat:
            before = column.heads.first
            column.settle()
            if column.heads.first is not before:
                self._move_up(column)

    def may_try(self, column: Column) -> bool:
        """Return whether a column may be tried. One that may not is closed."""
        if not column.is_open:
            return False
        parked = self._full.get(column.key)
        if column.queue in self.paused:
            self.paused[column.queue].append(column)
        elif parked is not None and parked.priority < column.priority:
            parked.behind.append(column)
            column.is_held = True
        else:
            return True
        column.is_open, column.position = False, None
        self.pass_on(column)
        return False

    def tidy(self, column: Column) -> None:
        """Drop a column that has no trigger, unless it will be tried and then dropped."""
        if column.position is None and column.is_open and column.is_empty:
            self.delete(column)

    def delete(self, column: Column) -> None:
        """Drop a column without triggers."""
        column.position = None
        if self.columns.get((column.priority, column.key)) is column:
            del self.columns[column.priority, column.key]
        self._lift(column)

    def park(self, column: Column, limit: Hashable) -> None:
        """Let a column wait for the limit that stopped it."""
        released_by, before = column.released_by, column.line[1]
        self._parked.park(column, limit)
        column.is_open, column.is_held = False, True
        parked = self._full.get(column.key)
        if parked is None or column.priority < parked.priority:
            self._full[column.key] = column
        if released_by == limit:
            column.released_by = None
        elif released_by is not None:
            if before == limit:
                self._parked.cross_over(released_by, limit)
            self.pass_on(column)

    def stopped_by(self, column: Column) -> Hashable:
        """Return the limit that stopped a held column, or that stopped the column it waits
        behind."""
        return self._full.get(column.key, column).line[0]

    def freed(self, limits: Iterable[Hashable]) -> None:
        """Offer the first column that waits for each of these limits, which have a free slot."""
        for limit in limits:
            if limit in self.strands:
                self.try_again(limit)
            column = self._parked.release(limit)
            if column is not None:
                column.released_by = limit
                # At its order when it was parked: `take` sees whether another comes first now.
                assert column.position is not None
                self.offer(column, column.position[1])
                self._lift(column)

    def pass_on(self, column: Column) -> None:
        """Release the next column that waits for a limit, if that limit has released this column
        and did not stop it."""
        limit, column.released_by = column.released_by, None
        if limit is not None:
            self.freed((limit,))

    def resume(self, queue: str) -> None:
        """Offer the columns of a paused queue."""
        for column in self.paused.pop(queue, ()):
            self.offer(column)

    def start_over(self) -> None:
        """Try every column again after heads have changed; harmless, and rare."""
        self._parked.clear()
        self._full.clear()
        for paused in self.paused.values():
            paused.clear()
        for _, _, source in self.ready:
            source.position = None
        self.ready.clear()
        for key, column in [*self.columns.items()]:
            column.settle()
            if not column.strands and not column.cells():
                del self.columns[key]
                continue
            column.released_by = None
            column.behind.clear()
            self.offer(column)

    def _move_up(self, column: Column) -> None:
        """Offer a column again whose new head comes before the old one."""
        if not column.is_open:
            if column.position is None:
                return
            self._lift(column)
        self.offer(column)

    def _lift(self, column: Column) -> None:
        """Offer the columns behind a parked column that is tried again."""
        if self._full.get(column.key) is column:
            del self._full[column.key]
        for lower in column.behind:
            self.offer(lower)
        column.behind.clear()


def _lane_of(trigger: Trigger) -> LaneName:
    is_granted = trigger.path == TriggerPath.GRANT
    return trigger.queue, GRANTED if is_granted else trigger.partition, trigger.priority


_NOWHERE = (-(1 << 62), -1, 0, None)
"""Order of a column that only has cells in the heads of flows."""
