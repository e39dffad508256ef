"""The intake: move triggers from the channel into the trigger table, or into the backlogs of fair
queues."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from fairlead.core.triggers.table import Lent
from fairlead.engine.backlogs import Backlogs
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.ordering import Ordering
from fairlead.engine.outages import outage_pause
from fairlead.errors import StoreUnavailable
from fairlead.model import LaneKey, Trigger, TriggerPath

log = logging.getLogger("fairlead.intake")

LEAST_LOOK_AHEAD = 100
"""Least look-ahead where the channel decides the order. The look-ahead stays small there, because a
newer trigger cannot overtake one that a node has received."""

AGAIN = 1000
"""Triggers of a fifo lane in one repeated read, and so the most beyond the look-ahead."""


class Intake(SimplePart):
    """Read the channel while there is room, and drop triggers this node already knows."""

    def __init__(self, context: NodeContext, backlogs: Backlogs, ordering: Ordering) -> None:
        self._context = context
        self._channel = context.channel
        self._table = context.table
        self._backlogs = backlogs
        self._ordering = ordering
        self._least_look_ahead = _least_look_ahead(context)
        """Maximum number of triggers of a lane in memory while limits let some of them run."""
        self._look_ahead = self._least_look_ahead
        self._known: dict[str, int] = {}
        """Version by id of every trigger in the table or in flight on this node."""
        self._queued: dict[tuple[str, int], int] = {}
        """Number of triggers of fifo queues in the table, by queue and priority."""
        self._foreign: dict[tuple[str, int], int] = {}
        """Number of those whose tasks have no handler here."""
        self._left_out: set[tuple[str, int]] = set()
        """Queues and priorities with triggers kept out of memory for lack of room."""
        self._known_names = frozenset[str]()
        """Names of the tasks that some living node knows."""
        self._has_met_others = False
        """Whether a trigger of another name was kept out of memory."""

    async def run(self) -> None:
        """Receive until cancelled."""
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
            self._backlogs.on_drained()

    def ahead(self, lane: LaneKey) -> int:
        """Return how many more triggers fit; 0 for a fifo queue more than half full, so that reads
        stay large."""
        if lane.queue in self._backlogs:
            return self._backlogs.room(lane)
        queued = self._queued.get((lane.queue, lane.priority), 0)
        return self._look_ahead - queued if queued <= self._look_ahead // 2 else 0

    def set_blocked(self, is_blocked: bool) -> None:
        """Note whether limits stop every trigger in memory; if so, allow more of them."""
        most = self._context.settings.look_ahead if is_blocked else self._least_look_ahead
        if most != self._look_ahead:
            self._look_ahead = most
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
        if lane.queue in self._backlogs:
            return self._backlogs.room_behind(lane)
        queued = self._queued.get((lane.queue, lane.priority), 0)
        return AGAIN if queued <= self._look_ahead else 0

    def of_keys(
        self, lane: LaneKey, keys: Collection[str], unread: int
    ) -> tuple[Sequence[str], int] | None:
        """Return which of these fairness keys of a fair queue to read next, and how many triggers
        of each; None for a fifo queue."""
        return self._backlogs.of_keys(lane, keys, unread) if lane.queue in self._backlogs else None

    def take_in(self, triggers: Iterable[Trigger]) -> None:
        """Put new triggers into the table, or into their backlog."""
        known, push = self._known, self._table.push
        healed = 0
        fair: list[Trigger] = []
        refused: list[Trigger] = []
        for trigger in triggers:
            if known.get(trigger.id, 0) < trigger.version:
                known[trigger.id] = trigger.version
                is_again = trigger.path == TriggerPath.HEAL
                is_fair = trigger.queue in self._backlogs
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
                self._count(trigger, 1)
                push(trigger)
        if refused:
            self._channel.settled(refused)
        if fair:
            self._backlogs.accept(fair)
        if healed:
            self._context.observer.counted("healed_triggers", healed)
        self._context.events.on_ready()

    def taken(self, triggers: Iterable[Trigger]) -> None:
        """Note triggers that left the table, to be claimed or because their partition was lost."""
        half = self._look_ahead // 2
        freed = False
        fair: list[Trigger] = []
        for trigger in triggers:
            if trigger.level is not None:
                fair.append(trigger)
                continue
            freed = self._count(trigger, -1) == half or freed
        if fair:
            self._backlogs.taken(fair)
        if freed:
            self._channel.room_freed()

    def claim_ended(self, triggers: Collection[Trigger]) -> None:
        """Note that the claim of these triggers ended, won or lost."""
        self._channel.settled(triggers)
        if fair := [trigger for trigger in triggers if trigger.level is not None]:
            self._backlogs.claim_ended(fair)

    def refused(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers whose claim was lost."""
        self.drop(triggers)
        if fair := [trigger for trigger in triggers if trigger.level is not None]:
            self._backlogs.refused(fair)

    def keep_out(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers in the table that must wait for the first task of their ordering key."""
        plain = [trigger for trigger in triggers if trigger.level is None]
        self._table.remove(plain)
        self.taken(plain)
        self.drop(plain)
        if fair := [trigger for trigger in triggers if trigger.level is not None]:
            self._backlogs.keep_out(fair)

    def returned(self, triggers: Iterable[Trigger]) -> None:
        """Put back triggers whose claim has an unknown result: those of fair queues at their level;
        the channel delivers the others again."""
        fair = [trigger for trigger in triggers if trigger.level is not None]
        self.drop([trigger for trigger in triggers if trigger.level is None])
        if fair:
            self._backlogs.returned(fair)

    def put_back(self, lent: Collection[Lent]) -> None:
        """Put back triggers that were granted to other nodes: those of fair queues at their level,
        the others at their old position."""
        if fair := [trigger for trigger, _ in lent if trigger.level is not None]:
            self._backlogs.returned(fair)
        for each in lent:
            if each.trigger.level is None:
                self._count(each.trigger, 1)
                self._table.put_back(each)

    def admit(self, triggers: Iterable[Trigger]) -> None:
        """Add triggers of an ordering key that may run next to the table, ahead of the queue's
        order."""
        for trigger in triggers:
            self._known[trigger.id] = trigger.version
            self._count(trigger, 1)
            self._table.push(trigger)

    def _count(self, trigger: Trigger, change: int) -> int:
        """Count a trigger of a fifo queue that came or left; return how many are in the table."""
        lane = (trigger.queue, trigger.priority)
        if trigger.name not in self._context.served.handlers:
            foreign = self._foreign[lane] = self._foreign.get(lane, 0) + change
            if change < 0 and foreign <= self._look_ahead // 4 and lane in self._left_out:
                self._left_out.discard(lane)
                self._channel.redeliver()
        queued = self._queued[lane] = self._queued.get(lane, 0) + change
        return queued

    def _is_left_out(self, trigger: Trigger) -> bool:
        """Return whether a trigger of a fifo queue stays out of memory, so that it does not hold up
        others: no living node knows its task, or only other nodes do and half of the look-ahead
        waits for them already. Sweeps read it again."""
        if trigger.name in self._context.served.handlers:
            return False
        kinds = self._context.kinds
        if not kinds.shared or kinds.channel_decides_order:
            return False
        if trigger.name not in self._known_names:
            self._has_met_others = True
            return True
        lane = (trigger.queue, trigger.priority)
        if self._foreign.get(lane, 0) < self._look_ahead // 2:
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


def _least_look_ahead(context: NodeContext) -> int:
    settings = context.settings
    if context.kinds.channel_decides_order:
        return min(max(LEAST_LOOK_AHEAD, 2 * settings.concurrency), settings.look_ahead)
    return settings.look_ahead
