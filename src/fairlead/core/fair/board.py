"""The board of the trigger table: columns and flows in the order in which they are tried, and the
columns that wait for a limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from fairlead.core.fair.charged_runs import ChargedRuns
from fairlead.core.fair.columns import Cell, Column, Order, Parked, Strand
from fairlead.core.fair.entries import Entry
from fairlead.core.fair.flows import FairLane, Flow, TenantFlow
from fairlead.core.fair.groups import Scope
from fairlead.core.fair.heads import Heads
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.tenant_cells import TenantCell
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.model import PartitionKey, Trigger, TriggerPath, tenant_of

LaneName = tuple[str, int, int]
"""(queue, partition or ARRIVAL, priority)."""

ARRIVAL = -1
"""Stands for what runs in the order of arrival: triggers that other nodes grant, and those of all
partitions of a fifo queue."""


class Board:
    """Columns of triggers, by priority and by the limits that stop them, and the flows of fair
    lanes.

    Each cell is in the heads of its flow, or of its column once that was found closed. While heads
    have a cell that may be tried, the flow or column is among the ready ones, at the order of the
    first of these cells or before.
    """

    def __init__(self, slot_ledger: SlotLedger) -> None:
        self._slot_ledger = slot_ledger
        self.columns: dict[tuple[int, Hashable], Column] = {}
        self.ready = Heads()
        """Flows and open columns with heads that may be tried."""
        self.times: defaultdict[int, Scope] = defaultdict(Scope)
        """Virtual time by priority."""
        self.lanes: dict[LaneName, FairLane] = {}
        self.weights: dict[str, Mapping[str, float]] = {}
        """Weights set at run time, by fair queue."""
        self.run_times: dict[str, RunTimes] = {}
        """Mean run times, by queue that shares run time."""
        self.runs = ChargedRuns()
        self.strands: defaultdict[Hashable, list[Strand]] = defaultdict(list)
        """Strands by ordering key."""
        self._parked = Parked()

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
        name = _lane_of(trigger)
        if name[1] == ARRIVAL:
            pass_, id = 0, 0  # in the order of the node that granted it
        else:
            pass_, id = (0, trigger.seq) if trigger.level is None else trigger.level
        entry: Entry = (pass_, id, number, trigger, strand)
        lane = self.lanes.get(name) or self.lane(name)
        flow = lane.flows.get(lane.key(trigger))
        if flow is None:
            flow = self._open_flow(lane, trigger)
        cell = column.cells.get(flow)
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
        column.cells[flow] = cell
        self.put(cell)

    def _open_flow(self, lane: FairLane, trigger: Trigger) -> Flow:
        """Return the flow of the trigger's key, which is no tenant with a flow. A tenant gets
        another flow, with the cells of the one before, once there is a path."""
        before = lane.flows.get(tenant_of(lane.key(trigger)))
        flow = lane.open(trigger)
        if before is not None and before is not flow and before.count:
            for column in self.columns.values():
                if (cell := column.cells.get(before)) is not None:
                    self.drop(cell)
                    self._put_new([*cell], column, flow)
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
            self._moved(flow)

    def lane(self, name: LaneName) -> FairLane:
        """Return a lane, made if needed."""
        lane = self.lanes.get(name)
        if lane is None:
            queue, partition, priority = name
            is_fair = partition != ARRIVAL and queue in self.weights
            if partition != ARRIVAL and not is_fair:
                lane = self.lanes[name] = self.lane((queue, ARRIVAL, priority))
                return lane
            weights = self.weights[queue] if is_fair else None
            run_times = self.run_times.get(queue) if is_fair else None
            about = (priority, self.times[priority], weights, self.runs, run_times)
            lane = self.lanes[name] = FairLane(*about)
        return lane

    def drop_lanes(self, partitions: Collection[PartitionKey]) -> None:
        """Drop the lanes of these partitions, which have no triggers. Their runs are charged no
        more."""
        for name in [name for name in self.lanes if name[:2] in partitions]:
            del self.lanes[name]
        self.runs.drop(partitions)

    def ended(self, trigger: Trigger, cost: int) -> None:
        """Charge a run of `cost` microseconds to its key, if its lane shares run time; 0 for one
        that never began."""
        if (run := self.runs.end(trigger, cost)) is not None:
            self._moved(run.lane.ended(run, cost))

    def charge_overdue(self, now: float) -> None:
        """Charge the runs that have taken longer than expected. `now`: monotonic seconds."""
        for run, more in self.runs.overdue(now):
            self._moved(run.lane.correct(run, more))

    def _moved(self, flow: Flow) -> None:
        """Put a flow and its cells in order after its rank, or that of one of its keys, has moved.
        Those whose ranks are too low are found later."""
        for cell in [*flow.waiting]:
            assert cell.position is not None
            if cell.order(cell) < cell.position:
                self.put(cell)
        if flow.position is not None and (first := flow.first()) is not None:
            order = first.order(flow)
            if order < flow.position:
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
        return None if flow is None else column.cells.get(flow)

    def keep(self, found: Cell | Strand, is_kept: Callable[[Trigger], bool]) -> list[Entry]:
        """Remove and return the entries of a cell or strand for which `is_kept` is false. Those of
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

    def keep_in(self, queues: Collection[str], is_kept: Callable[[Trigger], bool]) -> list[Entry]:
        """Remove and return the entries of queues for whose triggers `is_kept` is false."""
        removed: list[Entry] = []
        for column in [*self.columns.values()]:
            if column.queue in queues:
                holders: list[Cell | Strand] = [*column.cells.values(), *column.strands.values()]
                for found in holders:
                    removed += self.keep(found, is_kept)
                self.tidy(column)
        return removed

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
        """Put a cell at its position, by its first trigger: among those of its flow, or of its
        column while that is closed. `is_lent`: of its column."""
        column, flow = cell.column, cell.flow
        if is_lent or not column.is_open:
            order = column.wait(cell)
            if column.heads.first is order and (column.is_open or not is_lent):
                self._move_up(column)  # after `pass_over` for another node, a parked one stays
            return
        if flow.put(cell) or flow.position is None:
            self.offer(flow, cell.order(flow))

    def drop(self, cell: Cell) -> None:
        """Drop a cell without triggers."""
        cell.position = None
        del cell.column.cells[cell.flow]
        cell.flow.remove(cell)

    def pass_over(self, cell: Cell, is_lent: bool = False) -> None:
        """Remove the first entry of a cell, whose strand waits or begins with another trigger."""
        cell.position = None
        if cell.pop() is None:
            self.drop(cell)
        else:
            self.put(cell, is_lent)

    def first_of_column(self, column: Column, is_lent: bool = False) -> Cell | None:
        """Return the first cell in the heads of a column, after moving those that have a later
        order or belong elsewhere. `is_lent`: return what another node may run."""
        heads = column.heads
        while (head := heads.first) is not None:
            cell: Cell = head[4]
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
                    self.pass_over(cell, is_lent)
                    continue
            order = cell.order(cell)
            if head == order:
                leader = None if is_lent else cell.flow.first()
                if leader is None or cell.place() < leader.place():
                    return cell
            elif is_lent or column.released_by is not None:
                # The column keeps the cell, because it may have to wait for its limit again.
                cell.position = order
                heads.replace(order)
                continue
            self.put(cell)
        return None

    def first_of_flow(self, flow: Flow) -> Cell | None:
        """Return the first cell in the heads of a flow, after moving those whose columns are
        closed."""
        while (cell := flow.first()) is not None:
            entry = cell.first
            if entry[4] is not None and entry[4].head is not entry:
                self.pass_over(cell)
                self.tidy(cell.column)
            elif cell.column.is_open:
                return cell
            else:
                self.put(cell)
        return None

    # columns --------------------------------------------------------------------------------------

    def offer(self, source: Column | Flow, order: Order) -> None:
        """Put a column or flow among the ready ones. `order`: of its first cell, or before."""
        if isinstance(source, Column):
            source.is_open = True
        position = source.position = (*order[:4], source)
        self.ready.push(position)

    def settle(self, column: Column) -> None:
        """Move the cells of a column that are in the heads of their flows into those of the
        column."""
        moved = [cell for cell in column.cells.values() if cell not in cell.flow.waiting]
        orders = [*map(column.wait, moved)]
        if column.heads.first in orders:
            self._move_up(column)

    def tidy(self, column: Column) -> None:
        """Drop a column that has no trigger."""
        if column.cells or column.strands:
            return
        column.position = None
        if self.columns.get((column.priority, column.key)) is column:
            del self.columns[column.priority, column.key]
        self.pass_on(column)

    def park(self, column: Column, limit: Hashable) -> None:
        """Let a column wait for the limit that stopped it."""
        released_by, before = column.released_by, column.line[1]
        self._parked.park(column, limit)
        column.is_open = False
        if released_by == limit:
            column.released_by = None
        elif released_by is not None:
            if before == limit:
                self._parked.cross_over(released_by, limit)
            self.pass_on(column)

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
                self.offer(column, column.position)

    def pass_on(self, column: Column) -> None:
        """Release the next column that waits for a limit, if that limit has released this column
        and did not stop it."""
        limit, column.released_by = column.released_by, None
        if limit is not None:
            self.freed((limit,))

    def _move_up(self, column: Column) -> None:
        """Offer a column again whose new head comes before the old one."""
        if column.heads.first is not None and (column.is_open or column.position is not None):
            self.offer(column, column.heads.first)


def _lane_of(trigger: Trigger) -> LaneName:
    is_granted = trigger.path == TriggerPath.GRANT
    return trigger.queue, ARRIVAL if is_granted else trigger.partition, trigger.priority
