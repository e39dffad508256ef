"""The lanes of a node: triggers beyond memory are left in their rows.

The lane of a fair queue asks the channel for the rows of the fairness keys that come first
(`fairlead.core.fair.keyed_lane`); that of a fifo queue is read in the order of arrival. Nothing
about the order is stored, so a new owner only reads. Fair queues with `backlog=` have lanes of
another kind (`fairlead.engine.backlogs`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.core.fair.keyed_lane import KeyedLane
from fairlead.core.fair.table import Held
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.ordering import Ordering
from fairlead.engine.sharing import Sharing, by_lane, most_of_lane
from fairlead.model import Feed, LaneKey, PartitionKey, Trigger
from fairlead.ports.trigger_channel import KeyNews

AGAIN = 1000
"""Triggers of a lane in one repeated read."""

KEPT_SHARE = 4
"""Fraction (one in KEPT_SHARE) of memory that triggers may keep which limits stop, while others
might run; the others are left in their rows, until these have started."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two searches for such triggers. The pause doubles while there are none."""

OPEN_SECONDS = 10.0
"""Longest time for which a lane finds its keys before the first task starts."""


@dataclass(eq=False)
class _Lane:
    key: LaneKey
    core: KeyedLane
    opening: list[Trigger] | None = field(default_factory=list)
    """Triggers that wait until enough keys are found; None once the lane is open."""
    unread: int = 0
    """Tenants with unread rows, as far as the channel knows; 1 for those of a fifo lane."""
    is_asked: bool = True
    """Whether the channel asked for rows, and found no room for all, after the last call of
    `room_freed`."""


class Lanes(SimplePart):
    """Route each trigger to its lane; drop triggers of partitions that this node does not own."""

    def __init__(
        self, context: NodeContext, ordering: Ordering, sharing: Sharing, queues: frozenset[str]
    ) -> None:
        """`queues`: names of the queues with lanes here."""
        self.sharing = sharing
        self._queues = queues
        self._context = context
        self._table = context.table
        self._clock = context.clock
        self._ordering = ordering
        self._owned: dict[PartitionKey, float] = {}
        """Monotonic seconds since which a partition is owned."""
        self._lanes: dict[LaneKey, _Lane] = {}
        self._most: dict[str, int] = {}
        """Triggers of a lane in memory, whatever its share is, by queue."""
        self._awaited: set[LaneKey] = set()
        """Lanes that wait for rows: those which are not open, and those that have asked for
        some."""
        self._stalled = asyncio.Event()

    async def run(self) -> None:
        """Leave triggers in their rows which limits stop, while others wait for room in memory."""
        pause = FIRST_PAUSE
        while True:
            await self._stalled.wait()
            self._stalled.clear()
            for lane in self._lanes.values():
                self._ask(lane)
            full = [lane for lane in self._lanes.values() if self._is_full(lane)]
            held_back = self._table.held_back([lane.key for lane in full])
            if [lane for lane in full if self._make_room(lane, held_back[lane.key])]:
                pause = FIRST_PAUSE
                self._stalled.set()
            else:
                pause = min(2 * pause, LONGEST_PAUSE)
            await self._clock.sleep(pause)

    def _is_full(self, lane: _Lane) -> bool:
        """Return whether rows wait for room in the memory of a lane."""
        core = lane.core
        return lane.unread > 0 and lane.opening is None and core.held > core.capacity // 2

    def on_stalled(self) -> None:
        """Note that slots are free and no trigger in memory may run."""
        if self._lanes:
            self._stalled.set()

    def _make_room(self, lane: _Lane, held_back: Sequence[Held]) -> bool:
        """Leave triggers of a full lane in their rows; return whether memory has room now."""
        core = lane.core
        columns = [held for held in held_back if not isinstance(held.column, OrderingKey)]
        if not core.is_fair:  # it reads names apart, and a name in one column keeps its order
            stops_all_keys = self._context.ledger.stops_all_keys
            columns = [held for held in columns if stops_all_keys(held.triggers[0])]
        kept = max(1, core.full // KEPT_SHARE // max(1, len(columns)))
        held_before = core.held
        for column, triggers, _ in columns:
            plain = [trigger for trigger in triggers if trigger.ordering_key is None]
            if plain:
                left, feeds = core.set_apart(column, plain, kept)
                self._table.remove(left)
                self._leave(lane, left, feeds)
        for column, _, _ in held_back:
            if isinstance(column, OrderingKey):
                self._ordering.leave_to_store(column)
        self._ask(lane)
        return core.held < held_before

    def _leave(self, lane: _Lane, triggers: Sequence[Trigger], feeds: Mapping[Feed, int]) -> None:
        """Leave triggers in their rows, from which they are read again."""
        self._context.events.on_dropped(triggers)
        self._context.channel.read_later(lane.key, feeds)

    def columns_changed(self, queue: str) -> None:
        """Note that the limits of a queue have changed."""
        for lane in self._lanes.values():
            if lane.key.queue == queue:
                lane.core.columns_changed()
                self._context.channel.read_together(lane.key)
                self._shrink(lane)
                self._ask(lane)

    # partitions come and go -----------------------------------------------------------------------

    def assign(self, owned: Collection[PartitionKey]) -> None:
        """Own exactly these partitions. What the table held of others is dropped already."""
        mine = [key for key in owned if key.queue in self._queues]
        now = self._clock.monotonic()
        self._owned = {key: self._owned.get(key, now) for key in mine}
        for key in [key for key in self._lanes if PartitionKey(*key[:2]) not in self._owned]:
            lane = self._lanes.pop(key)
            self._context.look_ahead.leave(key)
            self._context.events.on_dropped(lane.opening or ())
        counts = Counter(key.queue for key in mine)
        fair, look_ahead = self._context.kinds.fair, self._context.settings.look_ahead
        self._most = {
            queue: most_of_lane(look_ahead, count, is_fair=queue in fair)
            for queue, count in counts.items()
        }

    def release(self, keys: Collection[PartitionKey]) -> None:
        """Stop partitions before their leases are released."""
        self.assign(self._owned.keys() - keys)

    def positions(self, key: PartitionKey) -> dict[int, int] | None:
        """Return where the channel must begin: at the first row of each lane."""
        return {} if key in self._owned else None

    def set_weights(self, queue: str, weights: Mapping[str, float]) -> None:
        """Set weights by fairness key that replace those of tasks, from the next start on."""
        changed = self.sharing.set_weights(queue, weights)
        for lane in self._lanes.values():
            if changed and lane.key.queue == queue:
                self._table.reweigh(lane.key, changed)
                lane.core.reweigh(changed)
                self._context.events.on_ready()  # the table may offer again what a limit holds
                self._ask(lane)

    # room for triggers ----------------------------------------------------------------------------

    def room(self, key: LaneKey) -> int:
        """Return how many more triggers a lane takes that is read in the order of arrival: of a
        fifo queue none while memory is more than half full, so that reads stay large. In a fair
        queue they leave room for those of other keys, and one more is always read: it shows whether
        there are any."""
        if (lane := self._lane(key)) is None:
            return 0
        self._awaited.add(key)
        capacity, held = self._refill(lane), lane.core.held
        if lane.core.is_fair:
            return max(1, capacity // 2 - held)
        lane.is_asked = held > capacity // 2
        lane.unread = int(lane.is_asked)
        return 0 if lane.is_asked else max(1, capacity - held)

    def room_behind(self, key: LaneKey) -> int:
        """Return how many triggers behind the lane's position may be read again now."""
        return AGAIN if PartitionKey(*key[:2]) in self._owned else 0

    def reads_by_key(self, key: LaneKey) -> bool:
        """Return whether a long lane is read by fairness key, as those of fair queues here are."""
        return key.queue in self._queues and key.queue in self._context.kinds.fair

    def choose_keys(self, key: LaneKey, news: KeyNews) -> Sequence[tuple[Feed, int]]:
        """Return which feeds to read next, and how many triggers of each; see
        `fairlead.ports.trigger_channel.Room`."""
        if (lane := self._lane(key)) is None:
            return ()
        lane.unread, lane.is_asked = news.unread, True
        lane.core.remember(news.announced, news.found)
        if news.unread:
            self._refill(lane)
        chosen = lane.core.choose(news.unread, news.planned)
        if chosen:
            self._awaited.add(key)
        return chosen

    def held(self, key: LaneKey) -> int | None:
        """Return how many triggers the lane has if all of them are in memory, else None."""
        if (lane := self._lanes.get(key)) is None:
            return 0
        has_more = lane.core.has_unread or self._context.channel.is_behind(key)
        return None if lane.unread or has_more else lane.core.size

    def resize(self, key: LaneKey) -> None:
        """Apply the new share of the look-ahead."""
        if (lane := self._lanes.get(key)) is not None:
            lane.core.capacity = self._context.look_ahead.capacity(key, self._most[key.queue])
            self._shrink(lane)
            self._ask(lane)

    def _shrink(self, lane: _Lane) -> None:
        """Leave triggers in their rows for which memory has no more room."""
        core = lane.core
        if core.held > core.most and lane.opening is None:
            last = self._table.last(lane.key, core.held - core.capacity)
            self._table.remove(last)
            lane.core.left(last)
            feeds: dict[Feed, int] = {}
            for trigger in last:
                feed = Feed(core.key(trigger))
                feeds[feed] = min(feeds.get(feed, trigger.seq), trigger.seq - 1)
            self._leave(lane, last, feeds)

    def _refill(self, lane: _Lane) -> int:
        found = self._context.look_ahead.refill(lane.key, self._most[lane.key.queue])
        lane.core.capacity = found
        return found

    def _ask(self, lane: _Lane) -> None:
        """Let the channel ask for rows if the triggers in memory come to an end."""
        if lane.is_asked and lane.core.is_asking:
            lane.is_asked = False
            self._context.channel.room_freed(lane.key)

    # triggers come and go -------------------------------------------------------------------------

    def accept(self, triggers: Sequence[Trigger]) -> None:
        """Accept new triggers, in the order of the channel."""
        context = self._context
        for key, came in by_lane(triggers):
            if (lane := self._lane(key)) is None:
                context.events.on_dropped(came)
                continue
            count, most = lane.core.size + len(came), self._most[key.queue]
            lane.core.capacity = context.look_ahead.want(key, count, most)
            context.look_ahead.measure(key, came)
            kept, left = self._keep(lane, came)
            if left:
                known = set(map(id, kept))
                self._leave(lane, [each for each in came if id(each) not in known], left)
            if lane.opening is None:
                self._push(lane, kept)
            else:
                lane.opening += kept

    def _keep(
        self, lane: _Lane, batch: Sequence[Trigger]
    ) -> tuple[Sequence[Trigger], Mapping[Feed, int]]:
        """Return the triggers that memory takes, and where the others are read from later. The
        first task of a reserved ordering key always has room: others wait for it."""
        has_reservation = self._context.ledger.has_reservation
        if not (reserved := [t for t in batch if t.ordering_key and has_reservation(t)]):
            return lane.core.keep(batch)
        lane.core.came(reserved)
        ids = set(map(id, reserved))
        kept, left = lane.core.keep([each for each in batch if id(each) not in ids])
        return [*reserved, *kept], left

    def on_drained(self) -> None:
        """Note that a read has ended, which may have brought less than was asked for. Open lanes
        whose keys are found."""
        for lane in [self._lanes[key] for key in self._awaited if key in self._lanes]:
            if lane.opening is not None:
                until = self._owned[PartitionKey(*lane.key[:2])] + OPEN_SECONDS
                if self._context.channel.is_behind(lane.key) and self._clock.monotonic() < until:
                    continue
                waiting, lane.opening = lane.opening, None
                self._push(lane, waiting)
                lane.core.is_open = True
            self._awaited.discard(lane.key)
            self._ask(lane)
            self._leave_if_empty(lane)

    def _leave_if_empty(self, lane: _Lane) -> None:
        if not lane.core.size and self.held(lane.key) == 0:
            self._context.look_ahead.leave(lane.key)

    def _push(self, lane: _Lane, triggers: Iterable[Trigger]) -> None:
        kept_out = []
        for trigger in triggers:
            if trigger.ordering_key is not None and not self._ordering.admits(trigger):
                kept_out.append(trigger)
            else:
                self._table.push(trigger)
        self._drop(lane, kept_out)
        self._context.events.on_ready()

    def _drop(self, lane: _Lane, triggers: Sequence[Trigger]) -> None:
        lane.core.left(triggers)
        self._context.events.on_dropped(triggers)
        self._ask(lane)

    def taken(self, triggers: Sequence[Trigger]) -> None:
        """Note that triggers left the table, to be claimed."""
        for lane, batch in self._mine(triggers):
            lane.core.left(batch)
            self._context.look_ahead.took(lane.key, len(batch))
            self._ask(lane)
            self._leave_if_empty(lane)

    def claim_ended(self, triggers: Collection[Trigger]) -> None:
        """Do nothing: nothing is stored of a trigger."""

    def refused(self, triggers: Collection[Trigger]) -> None:
        """Note triggers whose claim was lost: their runs never began."""
        for trigger in triggers:
            self._charge(trigger, 0)

    def keep_out(self, triggers: Sequence[Trigger]) -> None:
        """Drop triggers in the table that must wait for the first task of their ordering key."""
        self._table.remove(triggers)
        for lane, batch in self._mine(triggers):
            lane.core.left(batch)
            self._ask(lane)
        self._context.events.on_dropped(triggers)

    def returned(self, triggers: Sequence[Trigger]) -> None:
        """Put back triggers that left the table and do not run: their claim has an unknown result,
        or another node gives them back. Also push those that may run next of their ordering key,
        which have no level yet in a queue with levels."""
        kept = set[int]()
        for key, batch in by_lane(triggers):
            lane = self._lane(key)
            if lane is None and key.queue in self._queues:
                continue
            kept.update(map(id, batch))
            if lane is not None:
                lane.core.came(batch)
            for trigger in batch:
                self._charge(trigger, 0)  # it is charged again when it starts
                self._table.push(trigger)
        self._context.events.on_dropped([each for each in triggers if id(each) not in kept])

    def ended(self, trigger: Trigger, started_at: int | None, now: int) -> None:
        """Charge a run that ended at `now` (microseconds); `started_at` is None if it never
        began."""
        cost = 0 if started_at is None else max(1, now - started_at)
        self._charge(trigger, cost)
        self.sharing.ended(trigger, cost)

    def _charge(self, trigger: Trigger, cost: int) -> None:
        if trigger.queue in self.sharing.run_times:
            self._table.ended(trigger, cost)
            self._context.events.on_ready()  # the table may offer again what a limit holds

    def _mine(self, triggers: Sequence[Trigger]) -> Iterator[tuple[_Lane, list[Trigger]]]:
        """Yield the lanes of these triggers, those of lost partitions left out."""
        for key, batch in by_lane(triggers):
            if (lane := self._lanes.get(key)) is not None:
                yield lane, batch

    def _lane(self, key: LaneKey) -> _Lane | None:
        """Return a lane, made if needed; None if this node does not own its partition."""
        lane = self._lanes.get(key)
        if lane is None and PartitionKey(*key[:2]) in self._owned:
            core = KeyedLane(self._table.lane(key), self._table.column)
            lane = self._lanes[key] = _Lane(key, core)
            if core.is_fair:
                core.is_open = False
            else:
                lane.opening, lane.is_asked = None, False
            self._awaited.add(key)
        return lane
