"""The intake: receive triggers from the channel, and pass the events of each trigger to the part
that it came from.

A trigger comes from a lane of this node, which leaves what is beyond memory in its rows
(`fairlead.engine.lanes`) or stores it (`fairlead.engine.backlogs`), or another node has granted it
(`fairlead.engine.helping`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from fairlead.engine.backlogs import Backlogs
from fairlead.engine.context import NodeContext
from fairlead.engine.helping import Helping
from fairlead.engine.lanes import Lanes
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.ordering import Ordering
from fairlead.engine.run import Run
from fairlead.errors import StoreUnavailable
from fairlead.model import Feed, LaneKey, PartitionKey, Trigger, TriggerPath
from fairlead.pauses import outage_pause
from fairlead.ports.trigger_channel import KeyNews

log = logging.getLogger("fairlead.intake")

YIELD_SECONDS = 0.2
"""Longest time for which reads of many triggers keep other parts waiting. Larger batches of
triggers make larger claims, so other parts do not get a turn after each read."""


class Home(Protocol):
    """A part that triggers come from."""

    def taken(self, triggers: Sequence[Trigger]) -> None:
        """Note triggers that left the table."""

    def claim_ended(self, triggers: Sequence[Trigger]) -> None:
        """Note that the claim of these triggers ended, won or lost."""

    def refused(self, triggers: Sequence[Trigger]) -> None:
        """Drop triggers whose claim was lost."""

    def returned(self, triggers: Sequence[Trigger]) -> None:
        """Put back triggers whose claim has an unknown result."""


class Intake(SimplePart):
    """Read the channel while there is room, and drop triggers that this node already knows."""

    def __init__(
        self,
        context: NodeContext,
        lanes: Lanes,
        backlogs: Backlogs | None,
        helping: Helping,
        ordering: Ordering,
    ) -> None:
        """`backlogs`: None without `backlog=`."""
        self._context = context
        self._channel = context.channel
        self.lanes = lanes
        self.backlogs = backlogs
        self._helping = helping
        self._ordering = ordering
        self._known: dict[str, int] = {}
        """Version by id of every trigger of a lane that is in the table or in flight."""

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
            self.lanes.on_drained()
            if self.backlogs is not None:
                self.backlogs.on_drained()
            if (now := self._context.clock.monotonic()) >= yield_at:
                yield_at = now + YIELD_SECONDS
                await asyncio.sleep(0)  # a read may not wait, and other parts have work too

    def _of(self, queue: str) -> Lanes | Backlogs:
        """Return the lanes of a queue."""
        if self.backlogs is not None and queue in self.backlogs:
            return self.backlogs
        return self.lanes

    # partitions and settings ----------------------------------------------------------------------

    def assign(self, owned: Collection[PartitionKey]) -> None:
        """Own exactly these partitions. What the table held of others is dropped already."""
        self.lanes.assign(owned)
        if self.backlogs is not None:
            self.backlogs.assign(owned)

    async def release(self, keys: Collection[PartitionKey]) -> None:
        """Stop partitions before their leases are released."""
        self.lanes.release(keys)
        if self.backlogs is not None:
            await self.backlogs.release(keys)

    def positions(self, key: PartitionKey) -> dict[int, int] | None:
        """Return where the channel must begin, by priority; None if it must not read yet."""
        return self._of(key.queue).positions(key)

    def set_weights(self, queue: str, weights: Mapping[str, float]) -> None:
        """Set weights by fairness key that replace those of tasks."""
        self._of(queue).set_weights(queue, weights)

    # room for triggers: see `fairlead.ports.trigger_channel.Room` ---------------------------------

    def ahead(self, lane: LaneKey) -> int:
        return self._of(lane.queue).room(lane)

    def behind(self, lane: LaneKey) -> int:
        return self._of(lane.queue).room_behind(lane)

    def reads_by_key(self, lane: LaneKey) -> bool:
        return self.lanes.reads_by_key(lane)

    def choose_keys(self, lane: LaneKey, news: KeyNews) -> Sequence[tuple[Feed, int]]:
        return self.lanes.choose_keys(lane, news)

    def held(self, lane: LaneKey) -> int | None:
        """Return how many triggers a lane has if all of them are in memory, else None."""
        return self._of(lane.queue).held(lane)

    def resize(self, lanes: Collection[LaneKey]) -> None:
        """Apply new shares of the look-ahead."""
        for lane in lanes:
            self._of(lane.queue).resize(lane)

    # triggers come and go -------------------------------------------------------------------------

    def take_in(self, triggers: Iterable[Trigger]) -> None:
        """Pass new triggers to their lanes."""
        known, admits = self._known, self._ordering.admits
        healed = 0
        new: list[Trigger] = []
        refused: list[Trigger] = []
        for trigger in triggers:
            if known.get(trigger.id, 0) < trigger.version:
                if trigger.path == TriggerPath.HEAL:
                    # The trigger was dropped, and may still have to wait for others of its key.
                    if trigger.ordering_key is not None and not admits(trigger):
                        refused.append(trigger)
                        continue
                    healed += 1
                known[trigger.id] = trigger.version
                new.append(trigger)
        if refused:
            self._channel.settled(refused)
        if self.backlogs is None:
            self.lanes.accept(new)
        else:
            stored = [trigger for trigger in new if trigger.queue in self.backlogs]
            self.backlogs.accept(stored)
            self.lanes.accept([each for each in new if each.queue not in self.backlogs])
        if healed:
            self._context.observer.counted("healed_triggers", healed)
        self._context.events.on_ready()

    def admit(self, triggers: Collection[Trigger]) -> None:
        """Add triggers of an ordering key that may run next to the table."""
        self._known.update((trigger.id, trigger.version) for trigger in triggers)
        self.returned([*triggers])

    def keep_out(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers in the table that must wait for the first task of their ordering key."""
        levelled = [trigger for trigger in triggers if trigger.level is not None]
        if self.backlogs is not None:
            self.backlogs.keep_out(levelled)
        self.lanes.keep_out([trigger for trigger in triggers if trigger.level is None])

    def drop(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers that ended on this node; a later trigger of the same task is new."""
        self._channel.settled(triggers)
        known = self._known
        for trigger in triggers:
            if known.get(trigger.id, 0) <= trigger.version:
                known.pop(trigger.id, None)

    # events of triggers that left the table -------------------------------------------------------

    def taken(self, triggers: Sequence[Trigger]) -> None:
        """Note triggers that left the table."""
        for home, batch in self._by_home(triggers):
            home.taken(batch)

    def claim_ended(self, triggers: Sequence[Trigger]) -> None:
        """Note that the claim of these triggers ended, won or lost."""
        for home, batch in self._by_home(triggers):
            if home is not self._helping:
                self._channel.settled(batch)
            home.claim_ended(batch)

    def refused(self, triggers: Sequence[Trigger]) -> None:
        """Drop triggers whose claim was lost."""
        for home, batch in self._by_home(triggers):
            if home is not self._helping:
                self.drop(batch)
            home.refused(batch)

    def returned(self, triggers: Sequence[Trigger]) -> None:
        """Put back triggers whose claim has an unknown result."""
        for home, batch in self._by_home(triggers):
            home.returned(batch)

    def outdated(self, triggers: Sequence[Trigger]) -> None:
        """Note triggers that left the table because the versions of their tasks changed."""
        self.taken(triggers)
        self.claim_ended(triggers)
        self.refused(triggers)

    def key_refused(self, trigger: Trigger) -> None:
        """Note that a trigger with an ordering key acquired its slots, and its claim was lost."""
        if trigger.path == TriggerPath.GRANT:
            self._helping.release_key(trigger)
        else:
            self._ordering.refused(trigger)

    def settled(self, runs: Collection[Run]) -> None:
        """Note that the store has recorded or refused the ends of these runs."""
        own = []
        for run in runs:
            trigger = run.trigger
            if trigger.path == TriggerPath.GRANT:
                self._helping.ended(run)
                continue
            own.append(trigger)
            if trigger.ordering_key is not None and run.holds_slot:
                self._ordering.ended(trigger, run.is_done)
        self.drop(own)

    def _by_home(self, triggers: Sequence[Trigger]) -> Iterable[tuple[Home, Sequence[Trigger]]]:
        """Group triggers by the part that they came from; most often that is one for all."""
        granted = [trigger for trigger in triggers if trigger.path == TriggerPath.GRANT]
        if granted:
            yield self._helping, granted
            triggers = [trigger for trigger in triggers if trigger.path != TriggerPath.GRANT]
        if self.backlogs is not None:
            if levelled := [trigger for trigger in triggers if trigger.level is not None]:
                yield self.backlogs, levelled
            triggers = [trigger for trigger in triggers if trigger.level is None]
        if triggers:
            yield self.lanes, triggers
