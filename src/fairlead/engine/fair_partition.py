"""One owned partition of a fair queue: its lanes, and the one coroutine that writes and reads for
them.

New triggers are given levels (`fairlead.core.fair.backlog`) and stay in memory while everything
fits there. Beyond that they go into the backlog store, and what comes next by level is read back
from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.clock import Clock
from fairlead.core.fair.backlog import Backlog, Changes, Timing, Write
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import Passes
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.runtime_shares import RuntimeShares
from fairlead.core.fair.time_passes import TimePasses
from fairlead.core.triggers.evictions import Evictions
from fairlead.core.triggers.table import Held, TriggerTable
from fairlead.engine.context import NodeEvents
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable
from fairlead.model import LaneKey, LaneRecord, PartitionKey, Trigger
from fairlead.ports.backlog_store import BacklogStore, Fenced
from fairlead.ports.trigger_channel import TriggerChannel

log = logging.getLogger("fairlead.fair_partition")

PAGE = 2000
"""Triggers in one write, and as many more may wait for it."""

PAGE_AGAIN = 10_000
"""Triggers looked at again at once."""

AGAIN_SHARE = 0.05
"""Looking again may take at most this share of the time."""

MOST_READ = 5000
"""Triggers read back at once."""

ORDER_FIRST_SECONDS = 10.0
"""How long a partition that was just taken over may put what it finds in order before it begins to
dispatch."""

_REMEMBERED = 10_000
"""Ids of a lane that were given a level last, and as many before: kept to tell at once what a
second look brings again."""

_PAUSE_AFTER_TROUBLE = 1.0  # seconds

_LONGEST_WAIT = 1.0
"""Seconds between looks at what is to be deleted or kept."""


@dataclass(eq=False)
class _Lane:
    key: LaneKey
    backlog: Backlog
    order_until: float
    """Monotonic seconds: until then, or until the channel has given all it had, nothing is
    dispatched."""
    shares: RuntimeShares | None = None
    """Of a queue that charges run time: they say what of it stands in the trigger table."""
    is_ordering: bool = True
    inbox: list[Trigger] = field(default_factory=list)
    unlooked: list[Trigger] = field(default_factory=list)
    """From places in the channel already passed: the store is asked first whether they have a
    level."""
    look_at: float = 0.0
    """Monotonic seconds: when more may be looked at again."""
    write: Write | None = None
    evictions: Evictions = field(default_factory=Evictions)
    recent: dict[str, int] = field(default_factory=dict)
    """Version by id of what was given a level."""
    less_recent: dict[str, int] = field(default_factory=dict)
    """The same of what was before that."""


@dataclass(frozen=True, kw_only=True)
class LaneContext:
    """What the lanes of a node's fair partitions work with."""

    store: BacklogStore
    table: TriggerTable
    channel: TriggerChannel
    ordering: Ordering
    events: NodeEvents
    look_ahead: int
    """Triggers in memory, for each lane, at most."""
    clock: Clock


class FairPartition:
    """See the module. `run()` for as long as the node owns the partition, then `close()`."""

    def __init__(
        self,
        key: PartitionKey,
        weights: Mapping[str, float],
        run_times: RunTimes | None,
        context: LaneContext,
    ) -> None:
        """`run_times`: of a queue that charges them; None: each task counts the same."""
        self.key = key
        self.is_started = False
        """It has taken over: `positions` are known."""
        self._weights = weights
        self._run_times = run_times
        self._context = context
        self._capacity = context.look_ahead
        self._store = context.store
        self._table = context.table
        self._events = context.events
        self._clock = context.clock
        self._lanes: dict[int, _Lane] = {}
        self._range_id = 0
        self._began = 0.0
        self._work = asyncio.Event()

    # life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take over, then read and write for the lanes. Fenced by another owner it starts over, if
        it is still wanted."""
        while True:
            try:
                await self._take_over()
                await self._serve()
            except Fenced as fenced:
                log.warning(
                    "another node has taken over",
                    extra={"partition": self.key, "error": str(fenced)},
                )
                self.drop()
            await self._clock.sleep(_PAUSE_AFTER_TROUBLE)

    async def _take_over(self) -> None:
        while True:
            try:
                found = await self._store.take_over(self.key)
                break
            except StoreUnavailable as error:
                log.warning("cannot take over while the store is away", extra={"error": str(error)})
                await self._clock.sleep(_PAUSE_AFTER_TROUBLE)
        self._range_id = found.range_id
        self._began = self._clock.monotonic()
        for priority, record in sorted(found.lanes.items()):
            self._add_lane(priority, record)
        self.is_started = True
        self._events.on_positions_changed()

    async def close(self) -> None:
        """After `run` was cancelled: keep what the next owner needs, unless it is the owner
        already."""
        try:
            for lane in self._lanes.values():
                if lane.write is None:
                    await self._store.write(lane.key, self._range_id, [], lane.backlog.record())
        except (Fenced, StoreUnavailable) as error:
            log.info(
                "left without keeping its records",
                extra={"partition": self.key, "error": str(error)},
            )
        self.drop()

    def drop(self) -> None:
        """Forget everything: another node will, or this one again."""
        self.is_started = False
        dropped = self._table.drop([self.key])
        undispatched = [
            t for lane in self._lanes.values() if lane.is_ordering for t in lane.backlog.loaded()
        ]
        undispatched += [
            t
            for lane in self._lanes.values()
            if lane.shares is not None
            for t in lane.shares.waiting()
        ]
        waiting = [t for lane in self._lanes.values() for t in [*lane.inbox, *lane.unlooked]]
        unwritten = [
            t for lane in self._lanes.values() if lane.write is not None for t in lane.write.entries
        ]
        self._lanes.clear()
        self._events.on_dropped([*dropped, *undispatched, *waiting, *unwritten])
        self._events.on_positions_changed()

    # what the node tells it -----------------------------------------------------------------------

    def positions(self) -> dict[int, int]:
        """By priority, the place in the channel up to which every trigger has a level."""
        return {priority: lane.backlog.read_seq for priority, lane in self._lanes.items()}

    def room(self, priority: int) -> int:
        """How many more triggers it takes from the channel now."""
        lane = self._lanes.get(priority)
        if lane is None:
            return PAGE
        waiting = len(lane.inbox) + len(lane.unlooked)
        return 2 * PAGE - waiting if waiting <= PAGE else 0

    def room_behind(self, priority: int) -> int:
        """How many triggers it looks at again now; where much is stored that is dear, and happens
        less often."""
        lane = self._lanes.get(priority)
        if lane is None or not lane.backlog.is_stored:
            return PAGE
        return 0 if lane.unlooked or self._clock.monotonic() < lane.look_at else PAGE_AGAIN

    def accept(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """New triggers of one lane, in the order of the channel."""
        lane = self._lanes.get(priority) or self._add_lane(priority, None)
        if lane.backlog.is_stored:
            self._sort_out(lane, triggers)
        else:
            lane.inbox += triggers  # what memory does not know is news
        if lane.write is None and not lane.unlooked and not lane.backlog.may_be_empty:
            self._place(lane)
        self._work.set()

    def _sort_out(self, lane: _Lane, triggers: Sequence[Trigger]) -> None:
        """Which of these are news, where something is stored."""
        passed, recent, less_recent = lane.backlog.read_seq, lane.recent, lane.less_recent
        levelled = []
        for trigger in triggers:
            if max(recent.get(trigger.id, 0), less_recent.get(trigger.id, 0)) >= trigger.version:
                levelled.append(trigger)
            elif trigger.seq > passed:
                lane.inbox.append(trigger)
            else:
                lane.unlooked.append(trigger)
        self._events.on_dropped(levelled)

    def resize(self, capacity: int) -> None:
        """So many triggers of each lane may be in memory."""
        self._capacity = capacity
        for lane in self._lanes.values():
            lane.backlog.capacity = capacity

    def look(self) -> None:
        """The channel has given what it had for now: what was held back for it need not be any
        longer."""
        for lane in self._lanes.values():
            self._let_go(lane)

    def taken(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """These have left the table, to be claimed."""
        lane = self._lanes[priority]
        lane.backlog.take(triggers)
        if lane.shares is not None:
            lane.shares.taken(triggers, self._clock.monotonic())
            self._show(lane, lane.shares)

    def answered(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Their claim was answered, won or lost: they are done with here."""
        lane = self._lanes.get(priority)
        if lane is not None:
            lane.backlog.ack(triggers)
            lane.evictions.ran += len(triggers)
            self._work.set()

    def refused(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """They left without a run: one that comes again is news."""
        if (lane := self._lanes.get(priority)) is not None:
            self._not_levelled(lane, triggers)
            for trigger in triggers:
                self.ended(trigger, 0)

    def ended(self, trigger: Trigger, cost: int) -> None:
        """A run has ended, after so many microseconds; or it never began: 0."""
        lane = self._lanes.get(trigger.priority)
        if lane is not None and lane.shares is not None:
            lane.backlog.ended(trigger, cost)
            lane.shares.ended(trigger, cost)

    def returned(self, priority: int, triggers: Sequence[Trigger]) -> None:
        """Nobody knows whether they were claimed: they are tried again, at their place."""
        lane = self._lanes.get(priority)
        known = [] if lane is None else [trigger for trigger in triggers if trigger in lane.backlog]
        if lane is not None:
            lane.backlog.take_back(known)
            if lane.shares is not None:
                lane.shares.returned(known, self._clock.monotonic())
            self._push(lane, known)
        still = {trigger.id for trigger in known}
        self._events.on_dropped([trigger for trigger in triggers if trigger.id not in still])

    # the coroutine --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            self._work.clear()
            is_busy = False
            for _, lane in sorted(self._lanes.items()):
                try:
                    is_busy |= await self._step(lane)
                    self._let_go(lane)
                except StoreUnavailable as error:
                    log.warning(
                        "the backlog waits while its store is away", extra={"error": str(error)}
                    )
                    await self._clock.sleep(_PAUSE_AFTER_TROUBLE)
                    is_busy = True
            if not is_busy:
                try:
                    async with asyncio.timeout(self._until_due()):
                        await self._work.wait()
                except TimeoutError:
                    pass

    def _until_due(self) -> float:
        """Seconds until something is to be done that nobody tells of."""
        now = self._clock.monotonic()
        looks = [
            lane.evictions.check_at - now
            for lane in self._lanes.values()
            if lane.evictions.check_at is not None
        ]
        return max(0.0, min([_LONGEST_WAIT, *looks]))

    async def _step(self, lane: _Lane) -> bool:
        """Everything the lane needs from the store now, once; False when that was nothing."""
        backlog, key = lane.backlog, lane.key
        if lane.unlooked:
            asked, lane.unlooked = lane.unlooked, []
            began = self._clock.monotonic()
            try:
                levelled = await self._store.levelled(
                    key, backlog.ack_level, [(t.id, t.version) for t in asked]
                )
            except StoreUnavailable:
                lane.unlooked = asked + lane.unlooked
                raise
            lane.look_at = began + (self._clock.monotonic() - began) / AGAIN_SHARE
            lane.inbox += [trigger for trigger in asked if trigger.id not in levelled]
            self._events.on_dropped([trigger for trigger in asked if trigger.id in levelled])
        if lane.inbox and lane.write is None and not backlog.may_be_empty:
            self._place(lane)
        if lane.write is None:
            self._make_room(lane)
        if (write := lane.write) is not None:
            try:
                await self._store.write(key, self._range_id, write.entries, write.record)
            except StoreUnavailable:
                backlog.write_failed()
                raise
            lane.write = None
            backlog.recorded(write.record, self._clock.monotonic())
            self._apply(lane, backlog.written(write))
            self._events.on_dropped(
                [trigger for trigger in write.entries if trigger not in backlog]
            )
            self._context.channel.room_freed()
            return True
        if (read := backlog.next_read(MOST_READ)) is not None:
            try:
                entries = await self._store.read_above(key, read.above, read.limit)
            except StoreUnavailable:
                backlog.read_failed()
                raise
            self._apply(lane, backlog.read(entries))
            return True
        now = self._clock.monotonic()
        if (through := backlog.next_delete(now)) is not None:
            await self._store.delete_through(key, self._range_id, through)
            backlog.deleted(through, now)
            return True
        if (record := backlog.next_record(now)) is not None:
            await self._store.write(key, self._range_id, [], record)
            backlog.recorded(record, now)
        return False

    def _place(self, lane: _Lane) -> None:
        triggers, lane.inbox = lane.inbox[:PAGE], lane.inbox[PAGE:]
        if not triggers:
            return
        if len(lane.recent) > _REMEMBERED:
            lane.recent, lane.less_recent = {}, lane.recent
        lane.recent.update([(trigger.id, trigger.version) for trigger in triggers])
        placed = lane.backlog.place(triggers)
        if isinstance(placed, Write):
            lane.write = placed
        else:
            self._apply(lane, placed)

    def _make_room(self, lane: _Lane) -> None:
        """Evict triggers that limits hold back in favour of stored ones that may
        run."""
        now = self._clock.monotonic()
        if lane.is_ordering or not lane.evictions.is_due(lane.backlog, now):
            return
        held = self._table.held_back(lane.key)
        if lane.shares is not None:
            held = [_with_those_behind(column, lane.shares) for column in held]
        chosen = lane.evictions.choose(lane.backlog, held, now)
        if chosen is not None:
            self._remove(lane, [*chosen.kept, *chosen.evicted])
            lane.write = lane.backlog.evict(*chosen)

    def _apply(self, lane: _Lane, changes: Changes) -> None:
        if lane.is_ordering:
            self._events.on_dropped(changes.dropped)
            return
        if changes.dropped:
            self._remove(lane, changes.dropped)
            self._events.on_dropped(changes.dropped)
        kept_out = []
        for trigger in changes.added:
            if trigger.ordering_key is not None and not self._context.ordering.admits(trigger):
                kept_out.append(trigger)
            elif lane.shares is None:
                self._table.push(trigger)
            else:
                lane.shares.add([trigger], self._clock.monotonic())
                if (
                    trigger.ordering_key is not None
                ):  # whether the next one is admitted depends on what is in the table
                    self._show(lane, lane.shares)
        if lane.shares is not None:
            self._show(lane, lane.shares)
        if kept_out:
            lane.backlog.ack(kept_out)  # never taken: the lane's time does not move on with them
            self._not_levelled(lane, kept_out)
            self._events.on_dropped(kept_out)
        if changes.added:
            self._events.on_ready()

    def _push(self, lane: _Lane, triggers: Sequence[Trigger]) -> None:
        if lane.shares is not None:
            self._show(lane, lane.shares)
            return
        for trigger in triggers:
            self._table.push(trigger)

    def _show(self, lane: _Lane, shares: RuntimeShares) -> None:
        for trigger, pass_ in shares.next(self._clock.monotonic()):
            self._table.push(trigger, pass_)

    def _remove(self, lane: _Lane, triggers: Sequence[Trigger]) -> None:
        if lane.shares is None:
            self._table.remove(triggers)
        else:
            self._table.remove(lane.shares.remove(triggers))
            self._show(lane, lane.shares)

    def _not_levelled(self, lane: _Lane, triggers: Sequence[Trigger]) -> None:
        for trigger in triggers:
            lane.recent.pop(trigger.id, None)
            lane.less_recent.pop(trigger.id, None)

    def _let_go(self, lane: _Lane) -> None:
        """Begin to dispatch what was held, once everything there was has its level."""
        if not lane.is_ordering:
            return
        is_waiting = (
            lane.inbox
            or lane.unlooked
            or lane.write is not None
            or self._context.channel.is_behind(lane.key)
        )
        if not is_waiting or self._clock.monotonic() >= lane.order_until:
            lane.is_ordering = False
            self._apply(lane, Changes(lane.backlog.loaded()))

    def _add_lane(self, priority: int, record: LaneRecord | None) -> _Lane:
        """`record` None: nothing of the lane was ever kept."""
        passes, shares = Passes(Counters(), self._weights), None
        if self._run_times is not None:
            passes = TimePasses(Counters(), self._weights, self._run_times)
            shares = RuntimeShares(self._weights, self._run_times)
        backlog = Backlog(
            self._range_id,
            record or LaneRecord(),
            passes,
            self._capacity,
            Timing(
                delete_acks=self._store.delete_acks, persist_seconds=self._store.persist_seconds
            ),
            is_new=record is None,
        )
        lane = self._lanes[priority] = _Lane(
            LaneKey(*self.key, priority), backlog, self._began + ORDER_FIRST_SECONDS, shares
        )
        return lane


def _with_those_behind(held: Held, shares: RuntimeShares) -> Held:
    """A column that limits stop, with what would follow it into the table."""
    behind = {id(trigger): trigger for shown in held.triggers for trigger in shares.behind(shown)}
    return Held([*held.triggers, *behind.values()], held.taken)
