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

from fairlead.core.levels.backlog import Backlog, BacklogWrite, Changes, Timing
from fairlead.core.levels.counters import Counters
from fairlead.core.levels.evictions import Evictions
from fairlead.core.levels.passes import Passes
from fairlead.engine.arrivals import PAGE, Arrivals
from fairlead.engine.context import NodeContext
from fairlead.engine.ordering import Ordering
from fairlead.engine.outages import outage_pause
from fairlead.errors import StoreUnavailable, WriteRefused
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger
from fairlead.ports.backlog_store import Fenced, OwnedBacklog
from fairlead.refused_writes import error_line

log = logging.getLogger("fairlead.fair_partition")

MOST_READ = 5000
"""Triggers in one read from the backlog store."""

MOST_LEARNT = 50_000
"""Stored entries of a former owner from which one call learns the next passes of keys."""

ORDER_FIRST_SECONDS = 10.0
"""Seconds a partition may sort the triggers found at its take-over before it dispatches."""

DELETE_AGAIN_SECONDS = 60.0
"""Seconds after which old entries that the store did not delete are deleted again."""

LOG_AGAIN_SECONDS = 3600.0
"""Seconds between two log lines about such entries of one partition."""

_SHORTEST_WAIT = 0.001
"""Shortest pause, in seconds, between two steps without work."""

_LONGEST_WAIT = 1.0
"""Longest pause, in seconds, between checks for records to delete or save."""


@dataclass(eq=False)
class _FairLane:
    key: LaneKey
    backlog: Backlog
    order_until: float
    """Monotonic seconds until which nothing is dispatched, unless the channel is drained before."""
    is_ordering: bool = True
    """Whether triggers found at the take-over still get levels; the lane dispatches none until
    then."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    counted: int = 0
    """Triggers in `LookAhead.inboxes`: the arrivals, and those of the write."""
    write: BacklogWrite | None = None
    delete_from: float = 0.0
    """Monotonic seconds before which old entries are not deleted, because the store has refused
    it."""
    evictions: Evictions = field(default_factory=Evictions)


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
        self._look_ahead = context.look_ahead
        self._table = context.table
        self._events = context.events
        self._clock = context.clock
        self._lanes: dict[int, _FairLane] = {}
        self._range_id = 0
        self._began = 0.0
        self._work = asyncio.Event()
        self._has_unchecked = asyncio.Event()
        self._log_refusal_from = 0.0
        """Monotonic seconds from which a refused deletion is logged again."""

    # take-over and end ----------------------------------------------------------------------------

    def start(self, owned: OwnedBacklog) -> None:
        """Begin with the state that this node has taken over."""
        self._range_id = owned.range_id
        self._began = self._clock.monotonic()
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
        pause = 0.0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._check())
                await self._serve()
        except* Fenced as fenced:
            log.warning(
                "a partition must be taken over again",
                extra={"partition": self.key, "error": str(fenced.exceptions[0])},
            )
            pause = outage_pause()
        if (task := asyncio.current_task()) is not None and task.cancelling():
            # A group that ends with an error forgets that it was cancelled meanwhile.
            raise asyncio.CancelledError
        self.drop()
        await self._clock.sleep(pause)

    async def close(self) -> None:
        """Save the state for the next owner, after `run` was cancelled; a fenced owner saves
        nothing."""
        try:
            for lane in self._lanes.values():
                if lane.write is None:
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
        undispatched = [
            t for lane in self._lanes.values() if lane.is_ordering for t in lane.backlog.loaded()
        ]
        waiting = [t for lane in self._lanes.values() for t in lane.arrivals.clear()]
        unwritten = [
            t for lane in self._lanes.values() if lane.write is not None for t in lane.write.entries
        ]
        for lane in self._lanes.values():
            self._look_ahead.leave(lane.key)
            lane.write = None
            self._count(lane)
        self._lanes.clear()
        self._events.on_dropped([*dropped, *undispatched, *waiting, *unwritten])
        self._events.on_positions_changed(self.key)

    # events from the node -----------------------------------------------------------------------

    def positions(self) -> dict[int, int]:
        """Return, by priority, the channel position up to which every trigger has a level."""
        return {priority: lane.backlog.read_seq for priority, lane in self._lanes.items()}

    def room(self, priority: int) -> int:
        """Return how many more triggers the lane takes from the channel now."""
        lane = self._lanes.get(priority)
        if self._look_ahead.are_inboxes_full:
            is_empty = lane is None or not (lane.arrivals.new or lane.write is not None)
            return self._look_ahead.least_in_inbox if is_empty else 0
        return 2 * PAGE if lane is None else lane.arrivals.room

    def room_behind(self, priority: int) -> int:
        """Return how many triggers may be read again now: fewer while a large backlog makes that
        expensive."""
        lane = self._lanes.get(priority)
        if lane is None or not lane.backlog.is_stored:
            return PAGE
        return lane.arrivals.room_behind(self._clock.monotonic())

    def accept(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Accept new triggers of one lane, in the order of the channel."""
        lane = self._lanes.get(priority) or self._add_lane(priority, None)
        if lane.backlog.is_stored:
            self._events.on_dropped(lane.arrivals.separate(triggers, lane.backlog.highest_seq))
        else:
            lane.arrivals.add(triggers)  # a trigger unknown in memory is new
        if _can_level(lane):
            self._assign_levels(lane)
        self._count(lane)
        self._work.set()
        if lane.arrivals.unchecked:
            self._has_unchecked.set()

    def _count(self, lane: _FairLane) -> None:
        """Count the triggers on their way into memory or the store among those of the node."""
        look_ahead, counted = self._look_ahead, len(lane.arrivals)
        if lane.write is not None:
            counted += len(lane.write.entries)
        were_full = look_ahead.are_inboxes_full
        look_ahead.inboxes += counted - lane.counted
        lane.counted = counted
        if were_full and not look_ahead.are_inboxes_full:
            self._context.channel.room_freed()

    def limit(self, most: int) -> None:
        """Allow at most that many triggers of each lane in memory, whatever its share is."""
        self._most = most
        for lane in self._lanes.values():
            lane.backlog.capacity = min(lane.backlog.capacity, most)

    def held(self, priority: int) -> int | None:
        """Return how many triggers the lane has if all of them are in memory, else None."""
        if (lane := self._lanes.get(priority)) is None:
            return 0
        has_more = (
            not lane.backlog.is_at_end
            or lane.arrivals
            or lane.write is not None
            or self._context.channel.is_behind(lane.key)
        )
        return None if has_more else len(lane.backlog)

    def resize(self, priority: int) -> None:
        """Apply the new share of a lane."""
        if (lane := self._lanes.get(priority)) is not None:
            lane.backlog.capacity = self._look_ahead.capacity(lane.key, self._most)
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

    def taken(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Note that triggers left the table, to be claimed."""
        lane = self._lanes[priority]
        lane.backlog.take(triggers)
        self._look_ahead.took(lane.key, len(triggers))

    def claim_ended(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Acknowledge triggers whose claim ended, won or lost."""
        lane = self._lanes.get(priority)
        if lane is not None:
            # After another take-over, a trigger that was taken before is loaded and waits again.
            lane.backlog.ack(lane.backlog.claiming(triggers))
            lane.evictions.ran += len(triggers)
            self._work.set()

    def refused(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Note triggers whose claim was lost: a later trigger of the same task is new."""
        if (lane := self._lanes.get(priority)) is not None:
            lane.arrivals.drop_recent(triggers)

    def keep_out(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Drop triggers in the table that must wait for the first task of their ordering key."""
        if (lane := self._lanes.get(priority)) is not None:
            self._table.remove(triggers)
            self._drop_untaken(lane, triggers)
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
                    await self._clock.sleep(outage_pause())
                    is_busy = True
            if not is_busy:
                try:
                    async with asyncio.timeout(self._until_due()):
                        await self._work.wait()
                except TimeoutError:
                    pass

    def _until_due(self) -> float:
        """Return the seconds until the next work that no event announces."""
        now = self._clock.monotonic()
        checks = [
            lane.evictions.check_at - now
            for lane in self._lanes.values()
            if lane.evictions.check_at is not None
        ]
        # A timer may end a nanosecond early: wait, instead of setting it again until then.
        return max(_SHORTEST_WAIT, min([_LONGEST_WAIT, *checks]))

    async def _step(self, lane: _FairLane) -> bool:
        """Do one round of reads and writes for the lane; return False if there is nothing more to
        do."""
        backlog, key = lane.backlog, lane.key
        if lane.arrivals.new and _can_level(lane):
            self._assign_levels(lane)
        if lane.write is None:
            self._make_room(lane)
        if lane.write is None:
            self._shrink(lane)
        self._count(lane)
        if (write := lane.write) is not None:
            try:
                await self._store.write(key, self._range_id, write.entries, write.record)
            except StoreUnavailable:
                backlog.write_failed()
                raise
            lane.write = None
            self._count(lane)
            backlog.recorded(write.record, self._clock.monotonic())
            self._apply(lane, backlog.written(write))
            self._events.on_dropped(
                [trigger for trigger in write.entries if trigger not in backlog]
            )
            self._context.channel.room_freed()
            return True
        if backlog.has_room:
            backlog.capacity = self._look_ahead.refill(key, self._most)
        if (read := backlog.next_read(MOST_READ)) is not None:
            try:
                entries = await self._store.read_above(key, read.above, read.limit)
            except StoreUnavailable:
                backlog.read_failed()
                raise
            self._apply(lane, backlog.read(entries))
            return True
        if (above := backlog.unknown_above) is not None:
            backlog.learn(*await self._store.last_passes(key, above, MOST_LEARNT))
            return True
        if backlog.is_at_end and not len(backlog):
            self._look_ahead.leave(key)
        now = self._clock.monotonic()
        through = backlog.next_delete(now) if now >= lane.delete_from else None
        if through is not None and await self._delete(lane, through, now):
            backlog.deleted(through, now)
            return True
        if (record := backlog.next_record(now)) is not None:
            await self._store.write(key, self._range_id, [], record)
            backlog.recorded(record, now)
        return lane.arrivals.new > 0 and _can_level(lane)

    async def _delete(self, lane: _FairLane, through: Level, now: float) -> bool:
        """Delete old entries of a lane. If the store refuses it, return False: they are in no way
        of anything, so the lane goes on, and the next deletion is of these entries too."""
        try:
            await self._store.delete_through(lane.key, self._range_id, through)
        except WriteRefused as error:
            refusal: Exception = error
        except (StoreUnavailable, Fenced):
            raise
        except Exception as error:
            refusal = error
        else:
            return True
        lane.delete_from = now + DELETE_AGAIN_SECONDS
        if now >= self._log_refusal_from:
            self._log_refusal_from = now + LOG_AGAIN_SECONDS
            log.error(
                "the store does not delete old rows of the backlog; it is tried again, and tasks"
                " run on. Correct what the error names, such as a trigger of your own",
                extra={"lane": lane.key, "error": error_line(refusal)},
            )
        return False

    async def _check(self) -> None:
        """Ask the store which triggers from behind the channel position have a level, for as long
        as the partition runs. Meanwhile its lanes read, write and dispatch."""
        while True:
            await self._has_unchecked.wait()
            self._has_unchecked.clear()
            for lane in [lane for lane in self._lanes.values() if lane.arrivals.unchecked]:
                try:
                    await self._check_lane(lane)
                except StoreUnavailable as error:
                    log.warning(
                        "repeated triggers wait while the backlog's store is unavailable",
                        extra={"error": str(error)},
                    )
                    self._has_unchecked.set()
                    await self._clock.sleep(outage_pause())

    async def _check_lane(self, lane: _FairLane) -> None:
        asked, began = [*lane.arrivals.unchecked], self._clock.monotonic()
        levelled = await self._store.levelled(
            lane.key, lane.backlog.ack_level, [(t.id, t.version) for t in asked]
        )
        if self._lanes.get(lane.key.priority) is not lane:
            return  # dropped meanwhile
        now = self._clock.monotonic()
        found = lane.arrivals.checked(asked, levelled, now - began, now)
        self._count(lane)
        self._events.on_dropped(found)
        self._work.set()

    def _assign_levels(self, lane: _FairLane) -> None:
        if not (triggers := lane.arrivals.take_page()):
            return
        if not lane.backlog.is_stored:
            count = len(lane.backlog) + len(triggers)
            lane.backlog.capacity = self._look_ahead.want(lane.key, count, self._most)
        lane.arrivals.remember(triggers, lane.backlog.capacity)
        added = lane.backlog.add(triggers)
        if isinstance(added, BacklogWrite):
            lane.write = added
        else:
            self._apply(lane, added)

    def _make_room(self, lane: _FairLane) -> None:
        """Evict triggers that limits hold back, in favour of stored ones that may run."""
        now = self._clock.monotonic()
        if lane.is_ordering or not lane.evictions.is_due(lane.backlog, now):
            return
        held = [
            each._replace(triggers=levelled)
            for each in self._table.held_back([lane.key])[lane.key]
            if (levelled := [one for one in each.triggers if one.level is not None])
        ]
        chosen = lane.evictions.choose(lane.backlog, held, now)
        if chosen is not None:
            self._table.remove([*chosen.kept, *chosen.evicted])
            lane.write = lane.backlog.evict(*chosen)

    def _shrink(self, lane: _FairLane) -> None:
        """Drop from memory what the lane's share no longer holds, after storing it."""
        found = lane.backlog.shrink()
        if isinstance(found, BacklogWrite):
            lane.write = found
        else:
            self._apply(lane, found)

    def _apply(self, lane: _FairLane, changes: Changes) -> None:
        self._look_ahead.measure(lane.key, changes.added)
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
            self._drop_untaken(lane, kept_out)
        if changes.added:
            self._events.on_ready()

    def _drop_untaken(self, lane: _FairLane, triggers: Sequence[Trigger]) -> None:
        """Drop triggers of held ordering keys, which do not advance the lane's virtual time, and
        which may be cancelled unseen."""
        lane.backlog.ack(triggers)
        lane.arrivals.drop_recent(triggers)
        self._events.on_dropped(triggers)

    def _begin_dispatch(self, lane: _FairLane) -> None:
        """Begin to dispatch once every trigger found at the take-over has a level."""
        if not lane.is_ordering:
            return
        is_waiting = (
            lane.arrivals or lane.write is not None or self._context.channel.is_behind(lane.key)
        )
        if not is_waiting or self._clock.monotonic() >= lane.order_until:
            lane.is_ordering = False
            self._apply(lane, Changes(lane.backlog.loaded()))

    def _add_lane(self, priority: int, record: LaneRecord | None) -> _FairLane:
        """Add a lane; `record` is None when the lane has no saved state."""
        passes = Passes(Counters(), self._weights)
        backlog = Backlog(
            self._range_id,
            record or LaneRecord(),
            passes,
            1,  # until the lane asks for memory
            Timing(
                delete_acks=self._store.delete_acks, persist_seconds=self._store.persist_seconds
            ),
            is_new=record is None,
        )
        lane = self._lanes[priority] = _FairLane(
            LaneKey(*self.key, priority), backlog, self._began + ORDER_FIRST_SECONDS
        )
        return lane


def _can_level(lane: _FairLane) -> bool:
    """Return whether new triggers can get their levels now. At a take-over, they come after the
    older ones, which the store must show first."""
    return (
        lane.write is None
        and lane.backlog.can_add
        and not (lane.is_ordering and lane.arrivals.unchecked)
    )
