"""Takes triggers from the channel into the look-ahead: the sorted trigger table of this node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from fairlead.clock import Clock
from fairlead.core.trigger_table import TriggerTable
from fairlead.errors import StoreUnavailable
from fairlead.model import Trigger, TriggerPath
from fairlead.ports.observer import Observer
from fairlead.ports.trigger_channel import TriggerChannel

log = logging.getLogger("fairlead.intake")

LOOK_AHEAD = 10_000
"""Triggers in memory for one queue and priority."""

_PAUSE_AFTER_TROUBLE = 1.0  # seconds


class Intake:
    """Reads while there is room; a trigger this node already knows is dropped here."""

    def __init__(
        self,
        channel: TriggerChannel,
        table: TriggerTable,
        wake_dispatcher: Callable[[], None],
        observer: Observer,
        clock: Clock,
        look_ahead: int = LOOK_AHEAD,
    ) -> None:
        self._channel = channel
        self._table = table
        self._wake_dispatcher = wake_dispatcher
        self._observer = observer
        self._clock = clock
        self._look_ahead = look_ahead
        self._known: dict[str, int] = {}
        """Version by id of every trigger in the table or on its way through this node."""
        self._queued: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Receive for as long as the node lives."""
        while True:
            try:
                triggers = await self._channel.receive(self.room)
            except StoreUnavailable as error:
                log.warning("no triggers while the store is away", extra={"error": str(error)})
                await self._clock.sleep(_PAUSE_AFTER_TROUBLE)
                continue
            self.take_in(triggers)

    def room(self, queue: str, priority: int) -> int:
        """How many more triggers fit. Refilled by halves, so that reads stay large."""
        queued = self._queued.get((queue, priority), 0)
        return self._look_ahead - queued if queued <= self._look_ahead // 2 else 0

    def take_in(self, triggers: Iterable[Trigger]) -> None:
        """Put new triggers into the table."""
        known, queued, push = self._known, self._queued, self._table.push
        healed = 0
        for trigger in triggers:
            if known.get(trigger.id, 0) < trigger.version:
                known[trigger.id] = trigger.version
                lane = (trigger.queue, trigger.priority)
                queued[lane] = queued.get(lane, 0) + 1
                healed += trigger.path == TriggerPath.HEAL
                push(trigger)
        if healed:
            self._observer.counted("healed_triggers", healed)
        self._wake_dispatcher()

    def taken(self, triggers: Iterable[Trigger]) -> None:
        """These have left the table, to be grabbed or because their partition was revoked."""
        queued = self._queued
        half = self._look_ahead // 2
        freed = False
        for trigger in triggers:
            lane = (trigger.queue, trigger.priority)
            left = queued[lane] = queued[lane] - 1
            freed = freed or left == half
        if freed:
            self._channel.room_freed()

    def forget(self, triggers: Iterable[Trigger]) -> None:
        """This node has nothing more to do with these; a later trigger of the same task is news again."""
        known = self._known
        for trigger in triggers:
            if known.get(trigger.id, 0) <= trigger.version:
                known.pop(trigger.id, None)
