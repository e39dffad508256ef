"""The sorted trigger table: the next runnable trigger in O(log n), whatever else is full.

Ranks are virtual times of start-time fair queueing (Goyal, Vin and Cheng 1996).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter
from typing import NamedTuple

from fairlead.core.fair.board import Board
from fairlead.core.fair.columns import Cell, Column, Order, Strand
from fairlead.core.fair.flows import FairLane, Flow
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.limits.limits import Full
from fairlead.core.limits.slot_ledger import (
    OrderingKey,
    PolicyFailed,
    SlotLedger,
    stops_all_nodes,
)
from fairlead.model import LaneKey, PartitionKey, Trigger, TriggerPath


class Held(NamedTuple):
    """Triggers of a column that limits stop."""

    column: Hashable
    """Column; the ordering key that the triggers wait for, if that is what stops them."""
    triggers: list[Trigger]
    """Triggers in order, first to last."""
    taken: int
    """Triggers of the column that left it since the last call."""


class _Paused(NamedTuple):
    """Identity of the limit that stops the tasks of a paused queue."""

    queue: str


class Retries:
    """The earliest retry time of each limit, in monotonic seconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable]] = []
        self._times: dict[Hashable, float] = {}
        """Valid time of each limit; others in the heap are stale."""
        self._ties = count()

    def add(self, limit: Hashable, at: float) -> None:
        """Note that a limit may be tried again at a time."""
        if at < self._times.get(limit, float("inf")):
            self._times[limit] = at
            heappush(self._heap, (at, next(self._ties), limit))

    def next(self) -> float | None:
        """Return the earliest time, or None if there is none."""
        heap = self._heap
        while heap and self._times.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[Hashable]:
        """Remove and yield the limits whose time has come."""
        while (at := self.next()) is not None and at <= now:
            limit = heappop(self._heap)[2]
            del self._times[limit]
            yield limit


class TriggerTable:
    """A table of triggers: a column for each priority and kind, ordered by priority and rank.

    Ranks are virtual time, as in start-time fair queueing. Each key of a fair lane is a flow with
    one rank: of its triggers that may run, the first by level or position is next, whatever column
    it is in. What other nodes grant of a queue is one flow at one priority, with all lanes of a
    fifo queue.

    A column whose first trigger cannot acquire its slots is parked on the limit that stopped it,
    and costs nothing until that limit frees a slot. A freed slot releases one column, the first in
    the order of the table. Unless the limit stops that column again, the column then releases the
    next. So a freed slot costs O(log n) however many columns wait for it, and no column is left
    behind. A pause is a limit too, which stops all tasks of a queue.

    A trigger whose ordering key is busy stops no other: it leaves its column until the key is free.
    """

    def __init__(self, slot_ledger: SlotLedger) -> None:
        self._slot_ledger = slot_ledger
        self._board = Board(slot_ledger)
        self._retries = Retries()
        self._paused: dict[str, Full] = {}
        """Results of an acquire, by queue that is paused."""
        self._size = 0
        self._sequence = 0

    def __len__(self) -> int:
        return self._size

    @property
    def has_ready(self) -> bool:
        """Whether a trigger may be ready to be taken, as far as is known before it is tried."""
        return self._board.ready.first is not None

    def weigh(self, queue: str, weights: Mapping[str, float]) -> None:
        """Let a queue be fair. Its tasks have these weights by fairness key instead of their own,
        from the next task on; the mapping may change at any time. Call it before the first push."""
        self._board.weights[queue] = weights

    def share_run_time(self, queue: str, run_times: RunTimes) -> None:
        """Let the fairness keys of a queue share run time instead of starts. `run_times`: the means
        by which a trigger is charged when it starts. Call it before the first push."""
        self._board.run_times[queue] = run_times

    def ended(self, trigger: Trigger, cost: int) -> None:
        """Charge a run of `cost` microseconds to its key, if its queue shares run time; 0 for one
        that never began."""
        self._board.ended(trigger, cost)

    def reweigh(self, lane: LaneKey, keys: Iterable[str]) -> None:
        """Let the new weights of these keys of a fair lane act on their next starts."""
        self._board.reweigh((lane.queue, lane.partition, lane.priority), keys)

    def lane(self, lane: LaneKey) -> FairLane:
        """Return the flows of a lane of a fair queue."""
        return self._board.lane((lane.queue, lane.partition, lane.priority))

    def column(self, trigger: Trigger) -> Hashable:
        """Return the column of a trigger: that of all triggers which the same limits stop."""
        return self._slot_ledger.column(trigger)

    # triggers come and go -------------------------------------------------------------------------

    def push(self, trigger: Trigger) -> None:
        """Add a trigger behind those of its flow at lower levels or positions. What another node
        grants comes behind what it granted before."""
        self._sequence += 1
        self._size += 1
        self._board.insert(trigger, self._sequence)

    def remove(self, triggers: Collection[Trigger]) -> None:
        """Remove triggers, which hold no slots."""
        removed = set(map(_identity, triggers))
        for found in {self._board.find(trigger) for trigger in triggers}:
            if found is not None:
                gone = self._board.keep(found, lambda trigger: _identity(trigger) not in removed)
                self._size -= len(gone)
                self._board.tidy(found.column)

    def drop(self, partitions: Collection[PartitionKey]) -> list[Trigger]:
        """Remove and return all triggers of these partitions, which hold no slots."""
        removed = set(partitions)
        dropped = self._board.keep_in(
            {queue for queue, _ in removed},
            lambda trigger: (trigger.queue, trigger.partition) not in removed,
        )
        self._size -= len(dropped)
        self._board.drop_lanes(removed)
        return [entry[3] for entry in dropped]

    def set_limits(self, queue: str, limits: Mapping[str, int]) -> None:
        """Limit how many tasks of these fairness keys of the queue run here at once, from now on;
        other keys have no such limit. Waiting triggers keep their rank; running tasks continue."""
        if self._slot_ledger.limits(queue).keys() == limits.keys():
            self.freed(self._slot_ledger.set_limits(queue, limits))
            return
        # A key with a limit has a column of its own, so that it delays no other key.
        moved = self._board.keep_in({queue}, lambda trigger: False)
        freed = self._slot_ledger.set_limits(queue, limits)
        self._size -= len(moved)
        for entry in sorted(moved, key=itemgetter(2)):  # in the order in which they came
            self.push(entry[3])
        self.freed(freed)

    def pause(self, queue: str) -> None:
        """Take no trigger of this queue until `resume`."""
        self._paused[queue] = Full(_Paused(queue))

    def resume(self, queue: str) -> None:
        """Take triggers of this queue again, at their old positions."""
        if (pause := self._paused.pop(queue, None)) is not None:
            self.freed([pause.limit])

    # what waits -----------------------------------------------------------------------------------

    def waiting(self, ordering_key: OrderingKey) -> list[Trigger]:
        """Return the triggers of one ordering key."""
        strands = self._board.strands.get(ordering_key, ())
        return [entry[3] for strand in strands for entry in strand]

    def try_again(self, ordering_key: OrderingKey) -> None:
        """Offer the triggers of an ordering key again, because its reservation has changed."""
        self._board.try_again(ordering_key)

    def last(self, lane: LaneKey, count: int) -> list[Trigger]:
        """Return the triggers of a lane that start last, if no limit is full; but none with an
        ordering key, for which others may wait, or that another node has granted."""
        found = [
            trigger
            for column in self._board.columns.values()
            if (column.queue, column.priority) == (lane.queue, lane.priority)
            for trigger in column.triggers()
            if trigger.partition == lane.partition
            and trigger.ordering_key is None
            and _is_own(trigger)
        ]
        return self.lane(lane).in_order(found)[-count:]

    def held_back(self, lanes: Collection[LaneKey]) -> dict[LaneKey, list[Held]]:
        """Return the triggers of fair lanes that limits stop, by lane and column, with the number
        of triggers that left each column since the last call; but none that a limit of all tasks of
        the queue stops, because no other trigger of the lane could run."""
        places = {(lane.queue, lane.priority) for lane in lanes}
        stops_all: dict[tuple[Hashable, str], bool] = {}
        found: list[Held] = []
        for column in self._board.columns.values():
            if (column.queue, column.priority) not in places:
                continue
            if not column.is_open and column.queue not in self._paused:
                limit = (column.line[0], column.queue)
                if limit not in stops_all:
                    stops_all[limit] = self._slot_ledger.stops_all(*limit)
                if not stops_all[limit]:
                    found.append(Held(column.key, [*column.triggers()], column.taken))
            column.taken = 0
            for strand in column.strands.values():
                if strand.head is None:
                    triggers = [entry[3] for entry in strand]
                    found.append(Held(strand.ordering_key, triggers, strand.taken))
                strand.taken = 0
        by_lane: dict[LaneKey, list[Held]] = {lane: [] for lane in lanes}
        for held in found:
            inside: dict[LaneKey, list[Trigger]] = {}
            for trigger in filter(_is_own, held.triggers):
                lane = LaneKey(trigger.queue, trigger.partition, trigger.priority)
                inside.setdefault(lane, []).append(trigger)
            for lane in inside.keys() & by_lane.keys():
                triggers = inside[lane]
                if not isinstance(held.column, OrderingKey):
                    triggers = self.lane(lane).in_order(triggers)
                by_lane[lane].append(held._replace(triggers=triggers))
        return by_lane

    # dispatch -------------------------------------------------------------------------------------

    def take(self, limit: int, now: float) -> tuple[list[Trigger], list[PolicyFailed]]:
        """Take at most `limit` triggers and acquire their slots, by priority and then by rank; also
        return the failures of policies that raised, for which no slot is held. `now`: monotonic
        seconds."""
        self.freed(self._retries.due(now))
        if self._board.run_times:
            self._board.charge_overdue(now)
        taken: list[Trigger] = []
        failed: list[PolicyFailed] = []
        left = min(limit, self._slot_ledger.room)
        board, acquire, paused = self._board, self._slot_ledger.acquire, self._paused
        ready = board.ready
        while (position := ready.first) is not None and left > 0:
            source: Column | Flow = position[4]
            if source.position is not position:
                ready.pop()
                continue
            if isinstance(source, Flow):
                cell = board.first_of_flow(source)
            else:
                cell = board.first_of_column(source)
            if ready.first is not position:
                continue  # a limit was passed on to a column that comes before
            if cell is None or position < cell.order(source):
                self._come_later(source, cell)
                continue
            trigger = cell.first[3]
            try:
                stop = paused.get(trigger.queue) if paused else None
                if stop is None:
                    stop = acquire(trigger, now)
            except PolicyFailed as failure:
                failed.append(failure)
                self._start(source, cell, is_failed=True)
            else:
                if stop is not None:
                    self._stop(source, cell, stop)
                    continue
                taken.append(trigger)
                self._start(source, cell)
            left -= 1
        return taken, failed

    def _come_later(self, source: Column | Flow, cell: Cell | None) -> None:
        """Move a column or flow to the order of its first cell, or out of the ready ones."""
        board = self._board
        column = source if isinstance(source, Column) else None
        if cell is None:
            source.position = None
            if column is not None:
                board.pass_on(column)
                board.tidy(column)
        elif column is not None and (limit := column.released_by) is not None:
            # Another column may come first now: wait for the limit again, which releases it.
            board.park(column, limit)
            board.freed((limit,))
        else:
            board.offer(source, cell.order(source))

    def _start(self, source: Column | Flow, cell: Cell, is_failed: bool = False) -> None:
        """Remove the first trigger of a column or flow, which starts, or whose policy failed."""
        board, column, flow = self._board, cell.column, cell.flow
        _, _, _, trigger, strand = cell.first
        self._size -= 1
        flow.ran(trigger)
        is_over = cell.pop() is None
        if is_over:
            board.drop(cell)
        if source is flow:
            if not is_over:
                flow.started(cell)
            if (following := flow.first()) is not None:
                order = flow.position = following.order(flow)
                board.ready.replace(order)
        elif not is_over:
            order = cell.position = cell.order(cell)
            column.heads.replace(order)
        column.taken += 1
        if strand is not None:
            self._pop_strand(strand, waits=not is_failed)
        if column.released_by is not None:
            board.pass_on(column)
        if not column.cells and source is flow:
            board.tidy(column)

    def _stop(self, source: Column | Flow, cell: Cell, stop: Full) -> None:
        """Let the first cell of a column or flow wait, whose trigger cannot acquire its slots."""
        board, column, strand = self._board, cell.column, cell.first[4]
        if strand is not None and stop.limit == strand.ordering_key:
            strand.head = None
            board.pass_over(cell)
            board.tidy(column)
            return
        if stop.retry_at is not None:
            self._retries.add(stop.limit, stop.retry_at)
        if source is not column:
            column.is_open, column.position = False, None
            board.put(cell)
        board.park(column, stop.limit)

    def _pop_strand(self, strand: Strand, waits: bool = True) -> None:
        """Remove the first trigger of a strand, which has left its cell. `waits`: whether the next
        one waits for the ordering key."""
        strand.taken += 1
        if strand.pop() is None:
            self._board.drop_strand(strand)
        elif waits:
            strand.head = None
        else:
            self._board.enter(strand)

    # triggers for other nodes ---------------------------------------------------------------------

    def spare_names(self) -> list[tuple[str, str]]:
        """Return (queue, task name) of the triggers that this node has no slots for while another
        node may have them, the next to run first."""
        heads = [order[4].heads.first[4].first[3] for order in sorted(self._spare())]
        return list(dict.fromkeys((head.queue, head.name) for head in heads))

    def lend(self, most: int, is_wanted: Callable[[Trigger], bool]) -> list[Trigger]:
        """Take at most `most` triggers for other nodes, without slots, by priority and then by
        rank: only those that this node has no slots for. `is_wanted`: whether another node takes
        the trigger. After False, the rest of the trigger's column is skipped.

        An ordering key stays reserved for the lent trigger.
        """
        board = self._board
        spare = [*self._spare()]
        heapify(spare)
        columns: list[Column] = [order[4] for order in spare]
        lent: list[Trigger] = []
        while spare and len(lent) < most:
            before = heappop(spare)
            column: Column = before[4]
            cell = board.first_of_column(column, is_lent=True)
            if cell is None:
                continue
            trigger: Trigger = cell.first[3]
            if before < (order := cell.order(column)):
                heappush(spare, order)
            elif _is_own(trigger) and is_wanted(trigger):
                lent.append(trigger)
                if trigger.ordering_key is not None:
                    key = OrderingKey(trigger.queue, trigger.ordering_key)
                    self._slot_ledger.reserve(key, trigger.id)
                self._start(column, cell)
                if column.heads.first is not None:
                    heappush(spare, (*column.heads.first[:4], column))
        for column in columns:
            if column.is_open:
                board.pass_on(column)  # Another column may come first now.
                if column.heads.first is not None:
                    board.offer(column, column.heads.first)
            board.tidy(column)
        return lent

    def _spare(self) -> Iterator[Order]:
        """Yield the columns whose heads this node cannot run now while another node may, in any
        order, with priority and order of the head."""
        has_room = self._slot_ledger.room > 0
        for column in self._board.columns.values():
            may_run_there = column.is_open or not stops_all_nodes(column.line[0])
            may_run_here = column.is_open and has_room
            if may_run_there and not may_run_here and column.queue not in self._paused:
                self._board.settle(column)
                cell = self._board.first_of_column(column, is_lent=True)
                if cell is not None and _is_own(cell.first[3]):
                    yield cell.order(column)

    # limits ---------------------------------------------------------------------------------------

    def freed(self, limits: Iterable[Hashable]) -> None:
        """Offer the first column that waits for each of these limits, which have a free slot."""
        self._board.freed(limits)

    def next_retry(self) -> float | None:
        """Return when a parked column may be tried again although no slot was freed (monotonic
        seconds), or None."""
        return self._retries.next()


def _is_own(trigger: Trigger) -> bool:
    """Return whether this node owns the trigger and may lend the trigger. Otherwise another node
    has granted the trigger to this node."""
    return trigger.path != TriggerPath.GRANT


def _identity(trigger: Trigger) -> tuple[str, int, int, bool]:
    """Return the identity of a trigger. The table may hold several triggers of one task until their
    claims are refused: of several versions, or an own trigger and the same trigger in a grant."""
    return trigger.id, trigger.version, trigger.order_at, _is_own(trigger)
