"""Takes triggers from the channel into the look-ahead: into the trigger table, or the backlogs of
fair queues."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from fairlead.engine.backlogs import Backlogs
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import Running
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable
from fairlead.model import LaneKey, Trigger, TriggerPath

log = logging.getLogger("fairlead.intake")

FEW_AHEAD = 100
"""Triggers in memory at least, where the channel orders them: what a node has taken, no newcomer
overtakes."""

_AGAIN = 1000
"""Triggers of a fifo lane looked at again at once."""

_PAUSE_AFTER_TROUBLE = 1.0  # seconds


class Intake(Running):
    """Reads while there is room; a trigger this node already knows is dropped here."""

    def __init__(self, context: NodeContext, backlogs: Backlogs, ordering: Ordering) -> None:
        self._context = context
        self._channel = context.channel
        self._table = context.table
        self._backlogs = backlogs
        self._ordering = ordering
        self._few_ahead = _few_ahead(context)
        """Triggers of a lane in memory, as long as limits do not stop all of them."""
        self._most = self._few_ahead
        self._known: dict[str, int] = {}
        """Version by id of every trigger in the table or on its way through this node."""
        self._queued: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Receive for as long as the node lives."""
        while True:
            try:
                triggers = await self._channel.receive(self)
            except StoreUnavailable as error:
                log.warning("no triggers while the store is away", extra={"error": str(error)})
                await self._context.clock.sleep(_PAUSE_AFTER_TROUBLE)
                continue
            self.take_in(triggers)
            self._backlogs.look()

    def ahead(self, lane: LaneKey) -> int:
        """How many more triggers fit. A fifo queue is refilled by halves, so that reads stay
        large."""
        if lane.queue in self._backlogs:
            return self._backlogs.room(lane)
        queued = self._queued.get((lane.queue, lane.priority), 0)
        return self._most - queued if queued <= self._most // 2 else 0

    def blocked(self, is_so: bool) -> None:
        """Whether limits stop everything that is in memory: then more is looked at."""
        most = self._context.settings.look_ahead if is_so else self._few_ahead
        if most != self._most:
            self._most = most
            self._channel.room_freed()

    def behind(self, lane: LaneKey) -> int:
        """How many triggers are looked at again."""
        return self._backlogs.room_behind(lane) if lane.queue in self._backlogs else _AGAIN

    def take_in(self, triggers: Iterable[Trigger]) -> None:
        """Put new triggers into the table, or into their backlog."""
        known, queued, push = self._known, self._queued, self._table.push
        healed = 0
        fair: list[Trigger] = []
        left: list[Trigger] = []
        for trigger in triggers:
            if known.get(trigger.id, 0) < trigger.version:
                known[trigger.id] = trigger.version
                healed += trigger.path == TriggerPath.HEAL
                if trigger.queue in self._backlogs:
                    fair.append(trigger)
                    continue
                if trigger.ordering_key is not None and not self._ordering.admits(trigger):
                    del known[trigger.id]
                    left.append(trigger)
                    continue
                lane = (trigger.queue, trigger.priority)
                queued[lane] = queued.get(lane, 0) + 1
                push(trigger)
        if left:
            self._channel.settled(left)
        if fair:
            self._backlogs.accept(fair)
        if healed:
            self._context.observer.counted("healed_triggers", healed)
        self._context.events.on_ready()

    def taken(self, triggers: Iterable[Trigger]) -> None:
        """These have left the table, to be claimed or because their partition was revoked."""
        queued = self._queued
        half = self._most // 2
        freed = False
        fair: list[Trigger] = []
        for trigger in triggers:
            if trigger.level is not None:
                fair.append(trigger)
                continue
            lane = (trigger.queue, trigger.priority)
            left = queued[lane] = queued[lane] - 1
            freed = freed or left == half
        if fair:
            self._backlogs.taken(fair)
        if freed:
            self._channel.room_freed()

    def answered(self, triggers: Collection[Trigger]) -> None:
        """The claim of these was answered, won or lost."""
        self._channel.settled(triggers)
        if fair := [trigger for trigger in triggers if trigger.level is not None]:
            self._backlogs.answered(fair)

    def refused(self, triggers: Collection[Trigger]) -> None:
        """These were not claimed, and will not be as they are."""
        self.forget(triggers)
        if fair := [trigger for trigger in triggers if trigger.level is not None]:
            self._backlogs.refused(fair)

    def returned(self, triggers: Iterable[Trigger]) -> None:
        """Nobody knows whether these were claimed: those of fair queues are tried again, others are
        received again."""
        fair = [trigger for trigger in triggers if trigger.level is not None]
        self.forget([trigger for trigger in triggers if trigger.level is None])
        if fair:
            self._backlogs.returned(fair)

    def found(self, triggers: Iterable[Trigger]) -> None:
        """Tasks of an ordering key whose turn is near: into the table, whatever the order of their
        queue."""
        for trigger in triggers:
            self._known[trigger.id] = trigger.version
            lane = (trigger.queue, trigger.priority)
            self._queued[lane] = self._queued.get(lane, 0) + 1
            self._table.push(trigger)

    def gone(self, triggers: Collection[Trigger]) -> None:
        """These have left the table because their tasks have moved on."""
        self.taken(triggers)
        self.answered(triggers)
        self.refused(triggers)

    def forget(self, triggers: Collection[Trigger]) -> None:
        """This node has nothing more to do with these; a later trigger of the same task is news
        again."""
        self._channel.settled(triggers)
        known = self._known
        for trigger in triggers:
            if known.get(trigger.id, 0) <= trigger.version:
                known.pop(trigger.id, None)


def _few_ahead(context: NodeContext) -> int:
    settings = context.settings
    if context.kinds.channel_decides_order:
        return min(max(FEW_AHEAD, 2 * settings.concurrency), settings.look_ahead)
    return settings.look_ahead
