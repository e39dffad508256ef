"""The sorted trigger table: the next runnable trigger in O(log n), whatever else is full.

Ranks are virtual times of start-time fair queueing (Goyal, Vin and Cheng 1996).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from fairlead.core.fair.passes import STRIDE_SCALE
from fairlead.core.limits.slot_ledger import (
    OrderingKey,
    PolicyFailed,
    SlotLedger,
    stops_all_nodes,
)
from fairlead.core.triggers.aging import Aging
from fairlead.core.triggers.columns import Column, ColumnPosition, Order, Parked
from fairlead.model import FifoLane, LaneKey, PartitionKey, Trigger, TriggerPath


class Held(NamedTuple):
    """Triggers of a column that limits stop."""

    triggers: list[Trigger]
    """Triggers in order, first to last."""
    taken: int
    """Triggers of the column that left it since the last call."""


class Lent(NamedTuple):
    """A trigger taken for another node."""

    trigger: Trigger
    order: Order
    """Position in the table, for `put_back`."""


class _LaneRank:
    """Offset between passes of one fair lane and ranks of the table: `base` + pass is the rank."""

    __slots__ = ("base", "size")

    def __init__(self) -> None:
        self.base = 0
        self.size = 0


class TriggerTable:
    """A table of triggers: a column for each priority and kind, ordered by priority and rank of its
    head.

    Ranks are virtual time, as in start-time fair queueing. All fifo queues together are one flow,
    served in order of arrival; each key of a fair lane is a flow of its own. A lane that was idle
    starts at the rank of the others. Within a lane the order is that of the levels.

    A column whose head cannot acquire its slots is parked on the limit that stopped it, and costs
    nothing until that limit frees a slot. A column parked at one priority is not tried at a lower
    one. A freed slot releases one column, the first in the order of the table. Unless the limit
    stops that column again, the column then releases the next. So a freed slot costs O(log n)
    however many columns wait for it, and no column is left behind.
    """

    def __init__(self, slot_ledger: SlotLedger, aging: Aging | None = None) -> None:
        """`aging`: which lower priorities are served although a higher one has work; None: none."""
        self._slot_ledger = slot_ledger
        self._aging = aging
        self._columns: dict[tuple[int, Hashable], Column] = {}
        self._ready: list[ColumnPosition] = []
        self._parked = Parked()
        self._full: dict[Hashable, Column] = {}
        """Parked column by column key; columns of lower priorities wait behind it."""
        self._retries: list[tuple[float, int, Hashable]] = []
        self._retry_of: dict[Hashable, float] = {}
        """Valid retry time of each limit; others in the heap are stale."""
        self._paused: dict[str, list[Column]] = {}
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._sequence = 0
        self._served: defaultdict[int, int] = defaultdict(int)
        """Highest rank taken, by priority."""
        self._next_fifo: defaultdict[int, int] = defaultdict(int)
        """Rank of the next fifo trigger, by priority."""
        self._lanes: defaultdict[tuple[str, int, int], _LaneRank] = defaultdict(_LaneRank)
        """Lanes by queue, partition and priority."""
        self._ordered: defaultdict[OrderingKey, list[Column]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(self._sizes.values())

    @property
    def has_ready(self) -> bool:
        """Whether a trigger may be ready to be taken, as far as is known before it is tried."""
        return bool(self._ready)

    def sizes(self) -> dict[int, int]:
        """Return the number of triggers by priority."""
        return {priority: size for priority, size in sorted(self._sizes.items()) if size}

    def push(self, trigger: Trigger, pass_: int | None = None) -> None:
        """Add a trigger: at its level if it has one, else behind all triggers without a level.
        `pass_`: pass to use instead of the pass of its level."""
        priority = trigger.priority
        self._sequence += 1
        self._sizes[priority] += 1
        if trigger.level is None:
            rank = max(self._served[priority], self._next_fifo[priority])
            self._next_fifo[priority] = rank + STRIDE_SCALE
            order = (rank, 0, self._sequence)
        else:
            lane = self._lanes[trigger.queue, trigger.partition, priority]
            if pass_ is None:
                pass_ = trigger.level.pass_
            if not lane.size:
                lane.base = max(lane.base, self._served[priority] - pass_)
            lane.size += 1
            order = (lane.base + pass_, trigger.level.id, self._sequence)
        column = self._column(trigger)
        if column.add(order, trigger):
            self._move_up(column)

    def _column(self, trigger: Trigger) -> Column:
        """Return the column of a trigger, after making it if needed."""
        key = (trigger.priority, self._slot_ledger.column(trigger))
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = Column(*key, trigger)
            if column.ordering_key is not None:
                self._ordered[column.ordering_key].append(column)
        return column

    def _move_up(self, column: Column) -> None:
        """Offer a column again whose new head comes before the old one."""
        if column.position is not None or len(column.entries) == 1:
            if self._full.get(column.key) is column:
                self._lift(column)
            self._offer(column)

    def remove(self, triggers: Collection[Trigger]) -> None:
        """Remove triggers, which hold no slots."""
        removed = set(map(_identity, triggers))
        columns = {(t.priority, self._slot_ledger.column(t)) for t in triggers}
        for key in columns:
            column = self._columns.get(key)
            if column is not None:
                self._subtract(column.keep(lambda trigger: _identity(trigger) not in removed))

    def waiting(self, ordering_key: OrderingKey) -> list[Trigger]:
        """Return the triggers of one ordering key."""
        return [
            entry[4] for column in self._ordered.get(ordering_key, ()) for entry in column.entries
        ]

    def beyond(self, kept: Mapping[FifoLane, int]) -> list[Trigger]:
        """Return the triggers of fifo queues beyond the first `kept` of each lane; but none
        that another node has granted or that has no position in the channel."""
        waiting: dict[FifoLane, list[tuple[Order, Trigger]]] = {lane: [] for lane in kept}
        for column in self._columns.values():
            if not column.entries:
                continue
            lane = FifoLane(column.entries.first[4].queue, column.priority)
            if lane in kept:
                waiting[lane] += [
                    (order, trigger)
                    for *_, order, trigger in column.entries
                    if trigger.level is None and trigger.seq and _is_own(trigger)
                ]
        return [
            trigger for lane, found in waiting.items() for _, trigger in sorted(found)[kept[lane] :]
        ]

    def held_back(self, lane: LaneKey, names: Iterable[str] | None) -> list[Held]:
        """Return the triggers of a fair lane that limits stop, by column, with the number of
        triggers that left each column since the last call; but none that a limit of all these
        `names` stops (None: of all names), because no other trigger of the lane could run."""
        found = []
        stops_all: dict[Hashable, bool] = {}
        for column in self._columns.values():
            if column.priority == lane.priority:
                taken, column.taken = column.taken, 0
                if not column.is_held:
                    continue
                limit = self._stopped_by(column)
                if limit not in stops_all:
                    stops_all[limit] = self._slot_ledger.stops_all(limit, lane.queue, names)
                if not stops_all[limit]:
                    waiting = [
                        trigger
                        for *_, trigger in sorted(column.entries)
                        if trigger.level is not None
                    ]
                    found.append(
                        Held([t for t in waiting if (t.queue, t.partition) == lane[:2]], taken)
                    )
        return found

    def try_again(self, ordering_key: OrderingKey) -> None:
        """Offer the columns of an ordering key again, because its reservation has changed."""
        for column in self._ordered.get(ordering_key, ()):
            if column.position is not None:
                self._offer(column)

    def _subtract(self, triggers: Iterable[Trigger]) -> None:
        for trigger in triggers:
            self._sizes[trigger.priority] -= 1
            if trigger.level is not None:
                self._lanes[trigger.queue, trigger.partition, trigger.priority].size -= 1

    def take(self, limit: int, now: float) -> tuple[list[Trigger], list[PolicyFailed]]:
        """Take at most `limit` triggers and acquire their slots, by priority and then by rank; also
        return the failures of policies that raised, for which no slot is held. `now`: monotonic
        seconds."""
        self._release_due(now)
        taken: list[Trigger] = []
        failed: list[PolicyFailed] = []
        limit = min(limit, self._slot_ledger.room)
        ready, aging = self._ready, self._aging
        if aging is not None:
            aging.begin(now)
        while ready and (left := limit - len(taken) - len(failed)) > 0:
            aged = None if aging is None else aging.next()
            if aged is None:
                position = heappop(ready)
                column = position[2]
                if column.position is not position:
                    continue
            else:
                column = aged
                if self._full.get(column.key) is column:
                    self._lift(column)
            column.position = None
            if not column.entries:
                self._drop(column)
                continue
            queue = column.entries.first[4].queue
            parked = self._full.get(column.key)
            if queue in self._paused:
                self._paused[queue].append(column)
                self._pass_on(column)
            elif parked is not None and parked.priority < column.priority:
                parked.behind.append(column)
                column.is_held = True
                if aging is not None:
                    aging.release(column)
                    aging.hold(queue, column, is_behind=True)
                self._pass_on(column)
            elif aging is None:
                self._take_from(column, left, now, taken, failed)
            else:
                before, most = len(taken), min(left, aging.left) if aged is None else 1
                self._take_from(column, most, now, taken, failed, is_aged=aged is not None)
                if aged is None:
                    aging.started(queue, column.priority, len(taken) - before)
                else:
                    aging.tried(queue, column.priority, len(taken) > before)
        return taken, failed

    @property
    def has_spare(self) -> bool:
        """Whether a trigger waits that `lend` would take."""
        return next(self._spare(), None) is not None

    def spare_names(self) -> list[tuple[str, str]]:
        """Return (queue, task name) of the triggers that this node has no slots for while another
        node may have them, the next to run first."""
        spare = sorted(self._spare())
        return list(dict.fromkeys((head.queue, head.name) for head in map(_head, spare)))

    def lend(self, most: int, is_wanted: Callable[[Trigger], bool]) -> list[Lent]:
        """Take at most `most` triggers for other nodes, without slots, by priority and then by
        rank: only those that this node has no slots for. `is_wanted`: whether another node takes
        the trigger. After False, the rest of the trigger's column is skipped.

        An ordering key stays reserved for the lent trigger.
        """
        spare = [*self._spare()]
        heapify(spare)
        lent: list[Lent] = []
        while spare and len(lent) < most:
            priority, order, column = heappop(spare)
            trigger = _head((priority, order, column))
            if not is_wanted(trigger):
                continue
            column.entries.pop()
            column.taken += 1
            self._subtract([trigger])
            self._served[priority] = max(self._served[priority], order[0])
            lent.append(Lent(trigger, order))
            if column.ordering_key is not None:
                self._slot_ledger.reserve(column.ordering_key, trigger.id)
            elif column.entries and _is_own(column.entries.first[4]):
                heappush(spare, (priority, column.entries.first[3], column))
            if column.entries and not column.is_held and column.position is not None:
                self._offer(column)
        return lent

    def put_back(self, lent: Lent) -> None:
        """Add a lent trigger without a level again, at its old position."""
        trigger, order = lent
        self._sizes[trigger.priority] += 1
        column = self._column(trigger)
        if column.add(order, trigger):
            self._move_up(column)

    def _spare(self) -> Iterator[ColumnPosition]:
        """Yield the columns whose heads this node cannot run now while another node may, in any
        order."""
        has_room = self._slot_ledger.room > 0
        for column in self._columns.values():
            if (
                column.entries
                and (column.is_held if has_room else column.position is not None)
                and not (column.is_held and stops_all_nodes(self._stopped_by(column)))
                and (head := column.entries.first[4]).queue not in self._paused
                and _is_own(head)
                and self._slot_ledger.may_have_key(head)
            ):
                yield column.priority, column.entries.first[3], column

    def _stopped_by(self, column: Column) -> Hashable:
        """Return the limit that stopped a held column, or that stopped the column it waits
        behind."""
        return self._full.get(column.key, column).line[0]

    def freed(self, limits: Iterable[Hashable]) -> None:
        """Offer the first column that waits for each of these limits, which have a free slot."""
        for limit in limits:
            column = self._parked.release(limit)
            if column is not None:
                column.released_by = limit
                self._offer(column)
                if self._full.get(column.key) is column:
                    self._lift(column)

    def _lift(self, column: Column) -> None:
        """Offer the columns behind a parked column that is tried again."""
        del self._full[column.key]
        for lower in column.behind:
            self._offer(lower)
        column.behind.clear()

    def set_limits(self, queue: str, limits: Mapping[str, int]) -> None:
        """Limit how many tasks of these fairness keys of the queue run here at once, from now on;
        other keys have no such limit. Waiting triggers keep their rank; running tasks continue."""
        if self._slot_ledger.limits(queue).keys() == limits.keys():
            self.freed(self._slot_ledger.set_limits(queue, limits))
            return
        # A key with a limit has a column of its own, so that it delays no other key.
        moved = [
            c for c in self._columns.values() if c.entries and c.entries.first[4].queue == queue
        ]
        for column in moved:
            self._delete(column)
        self._slot_ledger.set_limits(queue, limits)
        for column in moved:
            for _, _, _, order, trigger in column.entries:
                self._column(trigger).add(order, trigger)
        self._start_over()

    def next_retry(self) -> float | None:
        """Return when a parked column may be tried again although no slot was freed (monotonic
        seconds), or None."""
        retries = self._retries
        while retries and self._retry_of.get(retries[0][2]) != retries[0][0]:
            heappop(retries)
        return retries[0][0] if retries else None

    def drop(self, partitions: Collection[PartitionKey]) -> list[Trigger]:
        """Remove and return all triggers of these partitions, which hold no slots."""
        removed = set(partitions)
        queues = {queue for queue, _ in removed}
        dropped: list[Trigger] = []
        for column in self._columns.values():
            if column.entries and column.entries.first[4].queue in queues:
                dropped += column.keep(
                    lambda trigger: (trigger.queue, trigger.partition) not in removed
                )
        self._subtract(dropped)
        for lane in [lane for lane in self._lanes if lane[:2] in removed]:
            del self._lanes[lane]
        self._start_over()
        return dropped

    def pause(self, queue: str) -> None:
        """Take no trigger of this queue until `resume`."""
        self._paused.setdefault(queue, [])

    def resume(self, queue: str) -> None:
        """Take triggers of this queue again, at their old positions."""
        for column in self._paused.pop(queue, ()):
            self._offer(column)

    def _take_from(
        self,
        column: Column,
        left: int,
        now: float,
        taken: list[Trigger],
        failed: list[PolicyFailed],
        is_aged: bool = False,
    ) -> None:
        """Take at most `left` triggers from one column, as long as its head is the first of all or
        the column `is_aged`."""
        entries, ready, acquire, priority = (
            column.entries,
            self._ready,
            self._slot_ledger.acquire,
            column.priority,
        )
        lanes = self._lanes
        before = len(taken) + len(failed)
        first = entries.first[3]
        while entries:
            _, _, _, order, trigger = entries.first
            if not left or (not is_aged and ready and ready[0] < (priority, order)):
                self._offer(column)
                break
            try:
                stop = acquire(trigger, now)
            except PolicyFailed as failure:
                failed.append(failure)
            else:
                if stop is not None and is_aged:
                    self._offer(column)  # it waits for the limit in its own turn, behind others
                    break
                if stop is not None:
                    if stop.retry_at is not None:
                        self._set_retry(stop.limit, stop.retry_at)
                    self._park(column, stop.limit)
                    break
                taken.append(trigger)
            first = order
            entries.pop()
            if trigger.level is not None:
                lanes[trigger.queue, trigger.partition, priority].size -= 1
            left -= 1
            if column.released_by is not None:
                self._pass_on(column)
        else:
            self._delete(column)
        count = len(taken) + len(failed) - before
        if count:
            column.taken += count
            self._sizes[priority] -= count
            self._served[priority] = max(self._served[priority], first[0])

    def _drop(self, column: Column) -> None:
        """Drop a column that other calls have emptied."""
        if (column.priority, column.key) in self._columns:
            self._delete(column)
        if self._full.get(column.key) is column:
            self._lift(column)
        self._pass_on(column)

    def _delete(self, column: Column) -> None:
        del self._columns[column.priority, column.key]
        if self._aging is not None:
            self._aging.release(column)
        if column.ordering_key is not None:
            left = self._ordered[column.ordering_key]
            left.remove(column)
            if not left:
                del self._ordered[column.ordering_key]

    def _offer(self, column: Column) -> None:
        order = column.entries.first[3] if column.entries else (0, 0, 0)
        column.position = (column.priority, order, column)
        column.is_held = False
        heappush(self._ready, column.position)
        if self._aging is not None and column.entries:
            self._aging.offer(column.entries.first[4].queue, column.position)

    def _park(self, column: Column, limit: Hashable) -> None:
        released_by, before = column.released_by, column.line[1]
        self._parked.park(column, limit)
        column.is_held = True
        if self._aging is not None:
            self._aging.hold(column.entries.first[4].queue, column, is_behind=False)
        parked = self._full.get(column.key)
        # A column of an ordering key never makes lower priorities wait: the task that must run
        # next may have a lower priority than the parked one.
        if column.ordering_key is None and (parked is None or column.priority < parked.priority):
            self._full[column.key] = column
        if released_by == limit:
            column.released_by = None
        elif released_by is not None:
            if before == limit:
                self._parked.cross_over(released_by, limit)
            self._pass_on(column)

    def _pass_on(self, column: Column) -> None:
        """Release the next column that waits for a limit, if that limit has released this column
        and did not stop it."""
        limit, column.released_by = column.released_by, None
        if limit is not None:
            self.freed((limit,))

    def _set_retry(self, limit: Hashable, at: float) -> None:
        if at < self._retry_of.get(limit, float("inf")):
            self._retry_of[limit] = at
            self._sequence += 1
            heappush(self._retries, (at, self._sequence, limit))

    def _release_due(self, now: float) -> None:
        while (at := self.next_retry()) is not None and at <= now:
            limit = heappop(self._retries)[2]
            del self._retry_of[limit]
            self.freed((limit,))

    def _start_over(self) -> None:
        """Try every column again after heads have changed; harmless, and rare."""
        self._parked.clear()
        self._full.clear()
        self._retries.clear()
        self._retry_of.clear()
        for paused in self._paused.values():
            paused.clear()
        for column in [column for column in self._columns.values() if not column.entries]:
            self._delete(column)
        self._ready.clear()
        for column in self._columns.values():
            column.released_by = None
            column.behind.clear()
            self._offer(column)


def _head(position: ColumnPosition) -> Trigger:
    """Return the first trigger of a column that is not empty."""
    return position[2].entries.first[4]


def _is_own(trigger: Trigger) -> bool:
    """Return whether this node owns the trigger and may lend the trigger. Otherwise another node
    has granted the trigger to this node."""
    return trigger.path != TriggerPath.GRANT


def _identity(trigger: Trigger) -> tuple[str, int, int, bool]:
    """Return the identity of a trigger. The table may hold several triggers of one task until their
    claims are refused: of several versions, or an own trigger and the same trigger in a grant."""
    return trigger.id, trigger.version, trigger.order_at, _is_own(trigger)
