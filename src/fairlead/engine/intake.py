"""The intake: move triggers from the channel into the trigger table, or into the lanes of fair
queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from fairlead.core.fair.table import Lent
from fairlead.engine.context import NodeContext
from fairlead.engine.fair_lanes import FairLanes
from fairlead.engine.keyed_lanes import AGAIN
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.ordering import Ordering
from fairlead.engine.outages import outage_pause
from fairlead.errors import StoreUnavailable
from fairlead.model import Feed, FifoLane, LaneKey, Trigger, TriggerPath
from fairlead.ports.trigger_channel import KeyNews

log = logging.getLogger("fairlead.intake")

YIELD_SECONDS = 0.2
"""Longest time for which reads of many triggers keep other parts waiting. Larger batches of
triggers make larger claims, so other parts do not get a turn after each read."""


class Intake(SimplePart):
    """Read the channel while there is room, and drop triggers this node already knows."""

    def __init__(self, context: NodeContext, backlogs: FairLanes, ordering: Ordering) -> None:
        self._context = context
        self._channel = context.channel
        self._table = context.table
        self.backlogs = backlogs
        self._ordering = ordering
        self._look_ahead = context.look_ahead
        self._most = context.settings.look_ahead
        """Maximum number of triggers of a lane in memory."""
        self._known: dict[str, int] = {}
        """Version by id of every trigger in the table or in flight on this node."""
        self._queued: dict[FifoLane, int] = {}
        """Number of triggers in the table."""
        self._asked: dict[FifoLane, set[int]] = {}
        """Partitions whose triggers the channel had more of."""
        self._foreign: dict[FifoLane, int] = {}
        """Number of those whose tasks have no handler here."""
        self._left_out: set[FifoLane] = set()
        """Lanes with triggers kept out of memory for lack of room."""
        self._known_names = frozenset[str]()
        """Names of the tasks that some living node knows."""
        self._has_met_others = False
        """Whether a trigger of another name was kept out of memory."""

    async def run(self) -> None:
        """Receive until cancelled."""
        yield_at = 0.0
        while True:
            try:
                triggers = await self._channel.receive(self)
            except StoreUnavailable as error:
                log.warning(
                    "no triggers while the store is unavailable", extra={"error": str(error)}
                )
                await self._context.clock.sleep(outage_pause())
                continue
            self.take_in(triggers)
            self.backlogs.on_drained()
            if (now := self._context.clock.monotonic()) >= yield_at:
                yield_at = now + YIELD_SECONDS
                await asyncio.sleep(0)  # a read may not wait, and other parts have work too

    def ahead(self, lane: LaneKey) -> int:
        """Return how many more triggers fit; 0 for a fifo queue more than half full, so that reads
        stay large."""
        if lane.queue in self.backlogs:
            return self.backlogs.room(lane)
        fifo = FifoLane(lane.queue, lane.priority)
        queued = self._queued.get(fifo, 0)
        # Asks for memory first: the lane may hold more than before while limits stop its triggers.
        capacity = self._look_ahead.refill(fifo, self._most)
        if queued > capacity // 2:
            return 0
        self._asked.setdefault(fifo, set()).add(lane.partition)
        return capacity - queued

    def _capacity(self, lane: FifoLane) -> int:
        """Return how many triggers of a fifo lane may be in memory."""
        return self._look_ahead.capacity(lane, self._most)

    def held(self, lane: FifoLane) -> int | None:
        """Return how many triggers a fifo lane has if all of them are in memory, else None."""
        is_behind = any(
            self._channel.is_behind(LaneKey(lane.queue, partition, lane.priority))
            for partition in self._asked.get(lane, ())
        )
        return None if is_behind else self._queued.get(lane, 0)

    def resize(self, lanes: Collection[FifoLane]) -> None:
        """Drop triggers that the shares of fifo lanes no longer hold. The channel delivers them
        again when there is room."""
        if not lanes:
            return
        kept = {
            lane: capacity
            for lane in lanes
            if self._queued.get(lane, 0) > (capacity := self._capacity(lane)) + capacity // 4
        }
        if kept and (dropped := self._table.beyond(kept)):
            self._table.remove(dropped)
            positions: dict[LaneKey, int] = {}
            for trigger in dropped:
                self._count(trigger, -1)
                key = LaneKey(trigger.queue, trigger.partition, trigger.priority)
                positions[key] = min(positions.get(key, trigger.seq), trigger.seq)
                self._asked.setdefault(FifoLane(key.queue, key.priority), set()).add(key.partition)
            self._channel.unread(positions)
            self.drop(dropped)
        self._channel.room_freed()

    def set_known_names(self, names: frozenset[str]) -> None:
        """Note the names of the tasks that some living node knows. Read triggers of new names."""
        if self._has_met_others and not names <= self._known_names:
            self._has_met_others = False
            self._channel.redeliver()
        self._known_names = names

    def behind(self, lane: LaneKey) -> int:
        """Return how many triggers behind the position may be read again. New ones among them run
        before the others, so a fifo queue that is full takes them too, a page at a time."""
        if lane.queue in self.backlogs:
            return self.backlogs.room_behind(lane)
        fifo = FifoLane(lane.queue, lane.priority)
        capacity = self._capacity(fifo)
        return min(AGAIN, capacity) if self._queued.get(fifo, 0) <= capacity else 0

    def of_keys(self, lane: LaneKey, news: KeyNews) -> Sequence[tuple[Feed, int]] | None:
        """Return which fairness keys of a fair queue to read next, and how many triggers of each;
        None for a fifo queue."""
        if lane.queue not in self.backlogs:
            return None
        return self.backlogs.of_keys(lane, news)

    def take_in(self, triggers: Iterable[Trigger]) -> None:
        """Put new triggers into the table, or into their fair lane."""
        known, push, handlers = self._known, self._table.push, self._context.served.handlers
        fair_queues = self.backlogs.sharing.weights
        healed = 0
        fair: list[Trigger] = []
        refused: list[Trigger] = []
        came: dict[tuple[str, int], list[Trigger]] = {}  # quicker than FifoLane
        for trigger in triggers:
            if known.get(trigger.id, 0) < trigger.version:
                known[trigger.id] = trigger.version
                is_again = trigger.path == TriggerPath.HEAL
                is_fair = trigger.queue in fair_queues
                # A new trigger of a fair queue is charged to its fairness key first.
                may_be_held = trigger.ordering_key is not None and (not is_fair or is_again)
                if (not is_fair and self._is_left_out(trigger)) or (
                    may_be_held and not self._ordering.admits(trigger)
                ):
                    del known[trigger.id]
                    refused.append(trigger)
                    continue
                healed += is_again
                if is_fair:
                    fair.append(trigger)
                    continue
                if trigger.name not in handlers:
                    self._count_foreign(trigger, 1)
                push(trigger)
                lane = (trigger.queue, trigger.priority)
                if lane in came:
                    came[lane].append(trigger)
                else:
                    came[lane] = [trigger]
        for lane, new in came.items():
            fifo = FifoLane(*lane)
            self._queued[fifo] = self._queued.get(fifo, 0) + len(new)
            self._look_ahead.measure(fifo, new)
        for fifo in [fifo for fifo in self._asked if not self._queued.get(fifo)]:
            self._leave_if_empty(fifo)
        if refused:
            self._channel.settled(refused)
        if fair:
            self.backlogs.accept(fair)
        if healed:
            self._context.observer.counted("healed_triggers", healed)
        self._context.events.on_ready()

    def taken(self, triggers: Iterable[Trigger]) -> None:
        """Note triggers that left the table, to be claimed or because their partition was lost."""
        left: dict[tuple[str, int], int] = {}
        handlers, is_fair = self._context.served.handlers, self._table.is_fair
        fair: list[Trigger] = []
        for trigger in triggers:
            if is_fair(trigger):
                fair.append(trigger)
                continue
            if trigger.name not in handlers:
                self._count_foreign(trigger, -1)
            lane = (trigger.queue, trigger.priority)
            left[lane] = left.get(lane, 0) + 1
        freed = False
        for lane, count in left.items():
            fifo = FifoLane(*lane)
            queued = self._queued[fifo] = self._queued.get(fifo, 0) - count
            freed |= queued <= self._capacity(fifo) // 2 < queued + count
            self._look_ahead.took(fifo, count)
            if not queued:
                self._leave_if_empty(fifo)
        if fair:
            self.backlogs.taken(fair)
        if freed:
            self._channel.room_freed()

    def _leave_if_empty(self, lane: FifoLane) -> None:
        if self.held(lane) == 0:
            self._look_ahead.leave(lane)
            self._asked.pop(lane, None)

    def claim_ended(self, triggers: Collection[Trigger]) -> None:
        """Note that the claim of these triggers ended, won or lost."""
        self._channel.settled(triggers)
        self.backlogs.claim_ended(triggers)

    def refused(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers whose claim was lost."""
        self.drop(triggers)
        self.backlogs.refused(triggers)

    def keep_out(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers in the table that must wait for the first task of their ordering key."""
        plain, fair = self._split(triggers)
        self._table.remove(plain)
        self.taken(plain)
        self.drop(plain)
        if fair:
            self.backlogs.keep_out(fair)

    def returned(self, triggers: Iterable[Trigger]) -> None:
        """Put back triggers whose claim has an unknown result: those of fair queues at their
        position; the channel delivers the others again."""
        plain, fair = self._split(triggers)
        self.drop(plain)
        if fair:
            self.backlogs.returned(fair)

    def put_back(self, lent: Collection[Lent]) -> None:
        """Put back triggers that were granted to other nodes, at their old positions."""
        if fair := self._split(each.trigger for each in lent)[1]:
            self.backlogs.returned(fair)
        for each in lent:
            if not self._table.is_fair(each.trigger):
                self._count(each.trigger, 1)
                self._table.put_back(each)

    def _split(self, triggers: Iterable[Trigger]) -> tuple[list[Trigger], list[Trigger]]:
        """Return the triggers in the order of arrival, and those that their keys order."""
        plain, fair = list[Trigger](), list[Trigger]()
        for trigger in triggers:
            (fair if self._table.is_fair(trigger) else plain).append(trigger)
        return plain, fair

    def admit(self, triggers: Iterable[Trigger]) -> None:
        """Add triggers of an ordering key that may run next to the table, ahead of the queue's
        order."""
        plain, fair = self._split(triggers)
        self._known.update((trigger.id, trigger.version) for trigger in [*plain, *fair])
        for trigger in plain:
            self._count(trigger, 1)
            self._table.push(trigger)
        if fair:
            self.backlogs.returned(fair)

    def _count(self, trigger: Trigger, change: int) -> None:
        """Count a trigger of a fifo queue that came or left."""
        lane = FifoLane(trigger.queue, trigger.priority)
        self._queued[lane] = self._queued.get(lane, 0) + change
        if trigger.name not in self._context.served.handlers:
            self._count_foreign(trigger, change)

    def _count_foreign(self, trigger: Trigger, change: int) -> None:
        """Count a trigger without a handler here that came or left."""
        lane = FifoLane(trigger.queue, trigger.priority)
        foreign = self._foreign[lane] = self._foreign.get(lane, 0) + change
        if change < 0 and lane in self._left_out and foreign <= self._capacity(lane) // 4:
            self._left_out.discard(lane)
            self._channel.redeliver()

    def _is_left_out(self, trigger: Trigger) -> bool:
        """Return whether a trigger of a fifo queue stays out of memory, so that it does not hold up
        others: no living node knows its task, or only other nodes do and half of the look-ahead
        waits for them already. Sweeps read it again."""
        if trigger.name in self._context.served.handlers:
            return False
        if trigger.name not in self._known_names:
            self._has_met_others = True
            return True
        lane = FifoLane(trigger.queue, trigger.priority)
        if self._foreign.get(lane, 0) < self._capacity(lane) // 2:
            return False
        self._left_out.add(lane)
        return True

    def drop(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers that ended on this node; a later trigger of the same task is new."""
        self._channel.settled(triggers)
        known = self._known
        for trigger in triggers:
            if known.get(trigger.id, 0) <= trigger.version:
                known.pop(trigger.id, None)
