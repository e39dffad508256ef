"""One owned partition of a fair queue: its lanes, and the coroutine that reads and writes their
backlogs.

The backlog (`fairlead.core.levels.backlog`) gives each new trigger a level. Triggers stay in memory
while they fit; the others go into the backlog store and are read back in the order of their levels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from fairlead.core.levels.backlog import Backlog, BacklogWrite, Changes, Timing
from fairlead.core.levels.evictions import Evictions
from fairlead.engine.context import NodeContext
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger
from fairlead.pauses import event_or_pause, outage_pause
from fairlead.ports.backlog_store import Fenced, OwnedBacklog
from fairlead.refused_writes import error_line

log = logging.getLogger("fairlead.fair_partition")

PAGE = 2000
"""Maximum number of triggers that get levels together; as many more may wait for their turn."""

PAGE_AGAIN = 200
"""Maximum number of triggers behind the position that one read returns again, and whose levels are
looked up together: on Cassandra 0.1 s, for which the lane does nothing else."""

DELETE_AGAIN_SECONDS = 60.0
"""Seconds after which old entries that the store did not delete are deleted again."""

MOST_REMEMBERED = 20_000
"""Maximum number of triggers that only the store has and of which a lane knows that."""

AGAIN_SHARE = 0.05
"""Greatest share of time spent on finding levels of such triggers (0 to 1)."""

MOST_READ = 5000
"""Triggers in one read from the backlog store."""

ORDER_FIRST_SECONDS = 10.0
"""Seconds a partition may sort the triggers found at its take-over before it dispatches."""

_LONGEST_WAIT = 1.0
"""Longest pause, in seconds, between checks for records to delete or save."""


@dataclass(eq=False)
class _FairLane:
    key: LaneKey
    backlog: Backlog
    order_until: float
    """Monotonic seconds until which nothing is dispatched, unless all triggers found at the
    take-over have levels before."""
    is_ordering: bool = True
    """Whether nothing is dispatched yet."""
    inbox: list[Trigger] = field(default_factory=list)
    """Triggers that have arrived and have no level yet."""
    unchecked: list[Trigger] = field(default_factory=list)
    """Triggers from behind the channel position, which may have a level in the store."""
    only_stored: dict[str, int] = field(default_factory=dict)
    """Version by id of triggers that were written last and are not in memory, so that a channel
    that reads again after a late commit costs no look-up."""
    check_from: float = 0.0
    """Monotonic seconds from which more of these may be read again."""
    counted: int = 0
    """Triggers in `LookAhead.inboxes`: those that have arrived, and those of the write."""
    delete_from: float = 0.0
    """Monotonic seconds before which old entries are not deleted, because the store has refused it;
    else 0."""
    evictions: Evictions = field(default_factory=Evictions)

    @property
    def can_add(self) -> bool:
        """Whether triggers can get their levels now. At a take-over, new ones come after the older
        ones, which the store must show first."""
        is_next = not (self.is_ordering and self.unchecked)
        return bool(self.inbox) and is_next and self.backlog.can_add

    @property
    def arriving(self) -> int:
        """Number of triggers on their way into memory or the store."""
        writing = 0 if self.backlog.write is None else len(self.backlog.write.entries)
        return len(self.inbox) + len(self.unchecked) + writing


class FairPartition:
    """A partition: call `start` after its take-over, `run` while it has lanes, then `close`."""

    def __init__(
        self,
        key: PartitionKey,
        weights: Mapping[str, float],
        context: NodeContext,
        ordering: Ordering,
    ) -> None:
        self.key = key
        self.is_started = False
        """Whether the take-over is done, so that `positions` are known."""
        self._weights = weights
        assert context.ports.backlog is not None  # level lanes need one
        self._store = context.ports.backlog
        self._context = context
        self._ordering = ordering
        self._most = context.settings.look_ahead
        self._table = context.table
        self._events = context.events
        self._lanes: dict[int, _FairLane] = {}
        self._range_id = 0
        self._began = 0.0
        self._work = asyncio.Event()

    # take-over and end ----------------------------------------------------------------------------

    def start(self, owned: OwnedBacklog) -> None:
        """Begin with the state that this node has taken over."""
        self._range_id = owned.range_id
        self._began = self._context.clock.monotonic()
        for priority, record in sorted(owned.lanes.items()):
            self._add_lane(priority, record)
        self.is_started = True
        self._events.on_positions_changed(self.key)

    @property
    def is_empty(self) -> bool:
        """Whether no lane has ever had a trigger, so that there is nothing to `run`."""
        return not self._lanes

    async def run(self) -> None:
        """Read and write for the lanes until the partition must be taken over again, because
        another owner fenced this one."""
        try:
            await self._serve()
        except Fenced as fenced:
            log.warning(
                "a partition must be taken over again",
                extra={"partition": self.key, "error": str(fenced)},
            )
        self.drop()
        await self._context.clock.sleep(outage_pause())

    async def close(self) -> None:
        """Save the state for the next owner, after `run` was cancelled; a fenced owner saves
        nothing."""
        try:
            for lane in self._lanes.values():
                if lane.backlog.write is None:
                    await self._store.write(lane.key, self._range_id, [], lane.backlog.record())
        except (Fenced, StoreUnavailable) as error:
            log.info(
                "left without saving its records",
                extra={"partition": self.key, "error": str(error)},
            )
        self.drop()

    def drop(self) -> None:
        """Drop all triggers from memory; the next owner reads them again."""
        self.is_started = False
        if self.is_empty:
            return
        dropped = self._table.drop([self.key])
        self._events.on_ready()  # the table offers all that is left again
        for lane in self._lanes.values():
            dropped += [*lane.inbox, *lane.unchecked]
            if lane.is_ordering:
                dropped += lane.backlog.loaded()
            if lane.backlog.write is not None:
                dropped += lane.backlog.write.entries
            self._context.look_ahead.leave(lane.key)
            self._count(lane, 0)
        self._lanes.clear()
        self._events.on_dropped(dropped)
        self._events.on_positions_changed(self.key)

    # events from the node -----------------------------------------------------------------------

    def positions(self) -> dict[int, int]:
        """Return, by priority, the channel position up to which every trigger has a level."""
        return {priority: lane.backlog.read_seq for priority, lane in self._lanes.items()}

    def room(self, priority: int) -> int:
        """Return how many more triggers the lane takes from the channel now."""
        lane = self._lanes.get(priority)
        look_ahead = self._context.look_ahead
        if look_ahead.are_inboxes_full:
            return 0 if lane is not None and lane.arriving else look_ahead.least_in_inbox
        waiting = 0 if lane is None else len(lane.inbox) + len(lane.unchecked)
        return 0 if waiting > PAGE else 2 * PAGE - waiting

    def room_behind(self, priority: int) -> int:
        """Return how many triggers may be read again now: fewer while a large backlog makes that
        expensive."""
        lane = self._lanes.get(priority)
        if lane is None or not lane.backlog.is_stored:
            return PAGE
        is_busy = lane.unchecked or self._context.clock.monotonic() < lane.check_from
        return 0 if is_busy else PAGE_AGAIN

    def accept(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Accept new triggers of one lane, in the order of the channel."""
        lane = self._lanes.get(priority) or self._add_lane(priority, None)
        # In a lane without stored entries, a trigger that is unknown in memory is new.
        passed = lane.backlog.read_seq if lane.backlog.is_stored else -1
        known = []
        for trigger in triggers:
            if trigger.seq > passed:
                lane.inbox.append(trigger)
            elif lane.only_stored.get(trigger.id, -1) >= trigger.version:
                known.append(trigger)
            else:
                lane.unchecked.append(trigger)
        self._events.on_dropped(known)
        if not lane.unchecked and lane.can_add:
            self._assign_levels(lane)
        self._count(lane, lane.arriving)
        self._work.set()

    def _count(self, lane: _FairLane, arriving: int) -> None:
        """Count the triggers on their way into memory or the store among those of the node."""
        look_ahead = self._context.look_ahead
        were_full, was_full = look_ahead.are_inboxes_full, lane.counted > PAGE
        look_ahead.inboxes += arriving - lane.counted
        lane.counted = arriving
        if were_full and not look_ahead.are_inboxes_full:
            self._context.channel.room_freed()
        elif was_full and arriving <= PAGE:
            self._context.channel.room_freed(lane.key)

    def limit(self, most: int) -> None:
        """Allow at most that many triggers of each lane in memory, whatever its share is."""
        self._most = most
        for priority in self._lanes:
            self.resize(priority)

    def held(self, priority: int) -> int | None:
        """Return how many triggers the lane has if all of them are in memory, else None."""
        if (lane := self._lanes.get(priority)) is None:
            return 0
        is_behind = lane.arriving or self._context.channel.is_behind(lane.key)
        return None if is_behind or not lane.backlog.is_at_end else len(lane.backlog)

    def resize(self, priority: int) -> None:
        """Apply the new share of a lane."""
        if (lane := self._lanes.get(priority)) is not None:
            lane.backlog.capacity = self._context.look_ahead.capacity(lane.key, self._most)
            self._work.set()

    def reweigh(self, keys: Collection[str]) -> None:
        """Let new weights of these keys act on the order in memory. Levels stay as they are."""
        for lane in self._lanes.values():
            self._table.reweigh(lane.key, keys)
            self._events.on_ready()  # the table may offer again what a limit holds

    def on_drained(self) -> None:
        """Note that the channel is drained: dispatch what waited for its triggers."""
        for lane in self._lanes.values():
            self._begin_dispatch(lane)

    def _begin_dispatch(self, lane: _FairLane) -> None:
        """Begin to dispatch once every trigger found at the take-over has a level."""
        if not lane.is_ordering:
            return
        is_waiting = lane.arriving or self._context.channel.is_behind(lane.key)
        if not is_waiting or self._context.clock.monotonic() >= lane.order_until:
            lane.is_ordering = False
            self._apply(lane, Changes(lane.backlog.loaded()))

    def taken(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Note that triggers left the table, to be claimed."""
        lane = self._lanes[priority]
        lane.backlog.take(triggers)
        self._context.look_ahead.took(lane.key, len(triggers))

    def claim_ended(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Acknowledge triggers whose claim ended, won or lost."""
        lane = self._lanes.get(priority)
        if lane is not None:
            # After another take-over, a trigger that was taken before is loaded and waits again.
            lane.backlog.ack(lane.backlog.claiming(triggers))
            lane.evictions.ran += len(triggers)
            self._work.set()

    def keep_out(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Drop triggers in the table that must wait for the first task of their ordering key."""
        if (lane := self._lanes.get(priority)) is not None:
            self._table.remove(triggers)
            lane.backlog.ack(triggers)
            self._events.on_dropped(triggers)
            self._work.set()

    def returned(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Put triggers whose claim has an unknown result back at their level."""
        lane = self._lanes.get(priority)
        known = [] if lane is None else [trigger for trigger in triggers if trigger in lane.backlog]
        if lane is not None:
            taken = lane.backlog.claiming(known)
            lane.backlog.take_back(taken)
            for trigger in taken:
                self._table.push(trigger)
        kept = {trigger.id for trigger in known}
        self._events.on_dropped([trigger for trigger in triggers if trigger.id not in kept])

    # the coroutine --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            self._work.clear()
            is_busy = False
            for _, lane in sorted(self._lanes.items()):
                try:
                    is_busy |= await self._step(lane)
                    self._begin_dispatch(lane)
                except StoreUnavailable as error:
                    log.warning(
                        "the backlog waits while its store is unavailable",
                        extra={"error": str(error)},
                    )
                    await self._context.clock.sleep(outage_pause())
                    is_busy = True
            if not is_busy:
                check_at = min(lane.evictions.check_at for lane in self._lanes.values())
                pause = check_at - self._context.clock.monotonic()
                await event_or_pause(self._work, min(_LONGEST_WAIT, pause))

    async def _step(self, lane: _FairLane) -> bool:
        """Do one round of reads and writes for the lane; return False if there is nothing more to
        do."""
        backlog, key = lane.backlog, lane.key
        if lane.unchecked:
            await self._check(lane)
        if lane.can_add:
            self._assign_levels(lane)
        self._evict(lane)
        if backlog.write is None:
            self._apply(lane, backlog.shrink())
        self._count(lane, lane.arriving)
        if backlog.write is not None:
            await self._write(lane, backlog.write)
            return True
        if backlog.has_room:
            backlog.capacity = self._context.look_ahead.refill(key, self._most)
        if (read := backlog.next_read(MOST_READ)) is not None:
            entries = await self._store.read_above(key, *read)
            for entry in entries:
                lane.only_stored.pop(entry.id, None)
            self._apply(lane, backlog.read(read, entries))
            return True
        if (above := backlog.unknown_above) is not None:
            backlog.learn(await self._store.read_above(key, above, MOST_READ), MOST_READ)
            return True
        if backlog.is_at_end and not len(backlog):
            self._context.look_ahead.leave(key)
        now = self._context.clock.monotonic()
        through = backlog.next_delete(now) if now >= lane.delete_from else None
        if through is not None:
            await self._delete(lane, through, now)
            return True
        if (record := backlog.next_record(now)) is not None:
            await self._store.write(key, self._range_id, [], record)
            backlog.upkeep.recorded(record, now)
        return bool(lane.unchecked) or lane.can_add

    async def _check(self, lane: _FairLane) -> None:
        """Find the triggers from behind the channel position that have no level in the store."""
        asked, began = lane.unchecked[:PAGE_AGAIN], self._context.clock.monotonic()
        found = await self._store.entries(lane.key, lane.backlog.ack_level, [t.id for t in asked])
        now = self._context.clock.monotonic()
        lane.check_from = began + (now - began) / AGAIN_SHARE
        del lane.unchecked[: len(asked)]
        levelled = {(entry.id, entry.version) for entry in found}
        new = [trigger for trigger in asked if (trigger.id, trigger.version) not in levelled]
        # After others of their keys, because a key gets its levels in its order.
        lane.inbox = sorted([*new, *lane.inbox], key=attrgetter("seq"))
        self._events.on_dropped([t for t in asked if (t.id, t.version) in levelled])

    def _assign_levels(self, lane: _FairLane) -> None:
        page, lane.inbox = lane.inbox[:PAGE], lane.inbox[PAGE:]
        if not lane.backlog.is_stored:
            count = len(lane.backlog) + len(page)
            lane.backlog.capacity = self._context.look_ahead.want(lane.key, count, self._most)
        self._apply(lane, lane.backlog.add(page))

    def _evict(self, lane: _FairLane) -> None:
        """Evict triggers that limits hold back, in favour of stored ones that may run."""
        now = self._context.clock.monotonic()
        if lane.backlog.write is not None or lane.is_ordering:
            return
        if not lane.evictions.is_due(lane.backlog, now):
            return
        held = [
            each._replace(triggers=levelled)
            for each in self._table.held_back([lane.key])[lane.key]
            if (levelled := [one for one in each.triggers if one.level is not None])
        ]
        if evicted := lane.evictions.choose(lane.backlog, held, now):
            self._table.remove(evicted)
            lane.backlog.evict(evicted)

    async def _write(self, lane: _FairLane, write: BacklogWrite) -> None:
        try:
            await self._store.write(lane.key, self._range_id, write.entries, write.record)
        except StoreUnavailable:
            lane.backlog.write_failed()
            raise
        self._apply(lane, lane.backlog.written(self._context.clock.monotonic()))
        self._count(lane, lane.arriving)
        stored = [entry for entry in write.entries if entry not in lane.backlog]
        if len(lane.only_stored) > MOST_REMEMBERED:
            lane.only_stored.clear()
        lane.only_stored.update((entry.id, entry.version) for entry in stored)
        self._events.on_dropped(stored)
        self._context.channel.room_freed()

    async def _delete(self, lane: _FairLane, through: Level, now: float) -> None:
        """Delete old entries of a lane. If the store refuses it, the lane goes on, and a later
        deletion is of these entries too."""
        try:
            await self._store.delete_through(lane.key, self._range_id, through)
        except (StoreUnavailable, Fenced):
            raise
        except Exception as error:
            if not lane.delete_from:
                log.error(
                    "the store does not delete old rows of the backlog; it is tried again, and"
                    " tasks run on. Correct what the error names, such as a trigger of your own",
                    extra={"lane": lane.key, "error": error_line(error)},
                )
            lane.delete_from = now + DELETE_AGAIN_SECONDS
        else:
            lane.delete_from = 0.0
            lane.backlog.upkeep.deleted(through, now)

    def _apply(self, lane: _FairLane, changes: Changes) -> None:
        self._context.look_ahead.measure(lane.key, changes.added)
        if lane.is_ordering:
            self._events.on_dropped(changes.dropped)
            return
        if changes.dropped:
            self._table.remove(changes.dropped)
            self._events.on_dropped(changes.dropped)
        kept_out = []
        push = self._table.push
        for trigger in changes.added:
            if trigger.ordering_key is not None and not self._ordering.admits(trigger):
                kept_out.append(trigger)
            else:
                push(trigger)
        if kept_out:
            lane.backlog.ack(kept_out)
            self._events.on_dropped(kept_out)
        if changes.added:
            self._events.on_ready()

    def _add_lane(self, priority: int, record: LaneRecord | None) -> _FairLane:
        """Add a lane; `record` is None when the lane has no saved state."""
        backlog = Backlog(
            self._range_id,
            record or LaneRecord(),
            1,  # until the lane asks for memory
            Timing(
                delete_acks=self._store.delete_acks, persist_seconds=self._store.persist_seconds
            ),
            self._weights,
            is_new=record is None,
        )
        lane = self._lanes[priority] = _FairLane(
            LaneKey(*self.key, priority), backlog, self._began + ORDER_FIRST_SECONDS
        )
        return lane
