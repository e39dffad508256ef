"""The trigger channel over the task store itself: the rows of a lane are its triggers, and
notifications say where new ones are.

A lane is one priority of one partition. Its reader remembers the highest ready_seq it has read and
continues from there, so it never reads dead rows again. A row that commits late (a lower ready_seq,
a later commit) has its own notification, which moves the reader back. Every 15 s
the channel makes up for lost notifications: each reader looks for newer rows, and a sweep walks the
rows behind the reader.

A lane of a fair queue with more rows than one read returns is read by fairness key
(`keyed_reader`), so that a flood delays no other key and stays in the store until there is room for
it.

A lane has a reader only once it has had a row, so empty lanes cost nothing: one search of the index
finds the lanes that have rows, when partitions are assigned and before each sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from fairlead.backends.sql.keyed_reader import ArrivalReader, KeyedReader
from fairlead.clock import Clock
from fairlead.model import (
    PRIORITIES,
    Feed,
    LaneKey,
    NewTask,
    PartitionKey,
    Submitted,
    Trigger,
    TriggerPath,
)
from fairlead.model.peer import PeerMessage
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.notifier import Notifier
from fairlead.ports.task_store import LaneReads
from fairlead.ports.trigger_channel import ChannelStatus, KeyNews, Owner, Room

PAGE = 1000
"""Triggers in one read."""

MOST_ANNOUNCED = 100
"""Maximum number of announced positions that are remembered while older rows are read."""

EARLY_SECONDS = 30.0
"""Time for which positions are remembered that were announced before this node read their lane:
longer than it takes to notice that an owner died."""

MOST_EARLY_LANES = 1000
"""Maximum number of lanes with such positions; those announced last."""

SWEEP_SHARE = 0.05
"""Greatest share of the time that sweeps take. A sweep over many rows is spread over more time."""

_NO_SEQ = 1 << 62


@dataclass(slots=True)
class LaneReader:
    """The reader of one lane."""

    key: LaneKey
    read_seq: int
    """Position of the reader: rows at or below it have been read, as far as is known."""
    highest_seq: int
    """Highest position ever read. A sweep that finds a new row below it has found a lost
    notification."""
    set_back: int = _NO_SEQ
    """Lowest position to which a notification has moved the reader back since the last read
    began."""
    is_behind: bool = True
    """True if the store may hold more rows above read_seq."""
    is_reading: bool = False
    """True while a read above read_seq is under way."""
    announced: list[int] = field(default_factory=list)
    """Positions of new rows above read_seq, the last ones announced."""
    keyed: KeyedReader | None = None
    """Reader by fairness key of the rows above read_seq, while there are many."""
    sweep_seq: int | None = None
    """Position of the sweep, which reads earlier rows again; None if no sweep is under way."""
    served: int = 0
    """Number of the last read of this lane among those of all lanes; 0 before the first."""

    @property
    def has_news(self) -> bool:
        """Whether a notification has announced rows that no read has found yet."""
        return bool(self.announced) if self.keyed is None else self.keyed.has_news

    @property
    def is_beginning(self) -> bool:
        """Whether the reader has begun to find the keys of a long lane, and has found too few."""
        return self.keyed is not None and self.keyed.is_beginning

    @property
    def is_sweeping(self) -> bool:
        """Whether earlier rows are to be read again."""
        return self.sweep_seq is not None or (self.keyed is not None and self.keyed.is_sweeping)

    def read_apart(self, store: LaneReads, clock: Clock) -> None:
        """Read one name of a lane in the order of arrival apart from the others."""
        self.keyed = ArrivalReader(self.key, self.read_seq, self.highest_seq, store, clock)
        self.keyed.read_later({Feed(""): self.read_seq})
        self.is_behind, self.announced = True, []

    def set_back_to(self, position: int) -> None:
        """Read again the rows above a position."""
        self.is_behind = True
        if position > self.read_seq:
            self.announced = [*self.announced[1 - MOST_ANNOUNCED :], position + 1]
        self.set_back = min(self.set_back, position)
        self.read_seq = min(self.read_seq, position)
        self.highest_seq = min(self.highest_seq, position)


class Sweep(IntEnum):
    """A sweep that is due."""

    NONE = 0
    NEW = 1
    AGAIN = 2
    """Sweeps under way begin again: they have passed rows that are to be delivered again."""


class ReadQueue:
    """The readers of lanes that are behind, without those that wait for room."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, LaneReader] = {}
        self._reads = 0
        """Number of reads of lanes so far."""
        self._is_news_first = False
        """Whether lanes with news went before the others in the last round of reads."""

    def add(self, lane: LaneReader) -> None:
        """Read a lane as soon as its turn comes."""
        self._lanes[lane.key] = lane

    def drop(self, key: LaneKey) -> None:
        """Read a lane no more until it is added again."""
        self._lanes.pop(key, None)

    def in_turn(self) -> list[LaneReader]:
        """Return the lanes to read, those first that were read least recently. So the first reads
        of long lanes, of many steps each, take turns. Every second time, lanes with news go before
        all others, and after them, one by one, lanes of which more must be read before any of their
        tasks may run."""
        self._is_news_first = not self._is_news_first
        lanes = sorted(self._lanes.values(), key=lambda lane: (lane.served, lane.key.priority))
        if self._is_news_first:
            first = [lane for lane in self._lanes.values() if lane.is_beginning]
            lanes = [*first, *(lane for lane in lanes if not lane.is_beginning)]
            lanes.sort(key=lambda lane: not lane.has_news)
        return lanes

    def on_read(self, lane: LaneReader) -> None:
        """Record that a lane was read."""
        self._reads += 1
        lane.served = self._reads


class DatabaseChannel:
    """A `fairlead.ports.trigger_channel.TriggerChannel` on the rows of the task store."""

    location = "the database"
    shares_partitions = False

    _heal_every = 15.0
    """Seconds between two sweeps."""

    def __init__(self, store: LaneReads | None, notifier: Notifier, clock: Clock) -> None:
        """`store`: None if the application has ordered queues only, which have no triggers."""
        self._store = store
        self._notifier = notifier
        self._clock = clock
        self._assigned: dict[PartitionKey, Mapping[int, int]] = {}
        """First positions of the partitions to read, by priority."""
        self._lanes: dict[LaneKey, LaneReader] = {}
        """Readers of the lanes that have had a row."""
        self._to_read = ReadQueue()
        self._to_sweep: dict[LaneKey, LaneReader] = {}
        """Readers whose earlier rows are to be read again."""
        self._early: dict[LaneKey, list[tuple[float, int]]] = {}
        """Positions that were announced of lanes without a reader, with the monotonic seconds."""
        self._unsearched: set[PartitionKey] = set()
        """Assigned partitions in which no search has looked for lanes with rows yet."""
        self._changed = asyncio.Event()
        self._heal_at = clock.monotonic() + self._heal_every
        self._sweep_due = Sweep.NONE
        self._sweep_at = 0.0
        """Monotonic seconds before which no search begins for a sweep, and no page of one."""
        self._on_notification: Callable[[Notification], None] = lambda notification: None

    @property
    def _tasks(self) -> LaneReads:
        assert self._store is not None  # nobody reads triggers of ordered queues
        return self._store

    def carrying(
        self,
        notification: Notification | None,
        tasks: Sequence[NewTask],
        submitted: Sequence[Submitted],
    ) -> Notification | None:
        return notification

    def announce(self, notification: Notification) -> None:
        self._notifier.notify(notification)

    def send(self, message: PeerMessage) -> None:
        self._notifier.send(message)

    async def open(self, on_notification: Callable[[Notification], None], node: str) -> None:
        self._on_notification = on_notification
        self._changed = asyncio.Event()  # a former node may have run on another event loop
        await self._notifier.listen(self._on_any_notification, node)

    def join(
        self, partitions: Mapping[str, int], node: str, owner: Owner, session_seconds: float
    ) -> None:
        """Do nothing: leases decide who owns the partitions."""

    async def leave(self) -> None:
        """Do nothing: leases decide who owns the partitions."""

    def assign(self, partitions: Mapping[PartitionKey, Mapping[int, int]]) -> None:
        lost = self._assigned.keys() - partitions.keys()
        gained = partitions.keys() - self._assigned.keys()
        if not lost and not gained:
            return
        for key in lost:
            for priority in PRIORITIES:
                self._lanes.pop(LaneKey(*key, priority), None)
                self._to_read.drop(LaneKey(*key, priority))
                self._to_sweep.pop(LaneKey(*key, priority), None)
        self._unsearched = (self._unsearched - lost) | gained
        self._assigned = dict(partitions)
        self._changed.set()

    def is_behind(self, lane: LaneKey) -> bool:
        found = self._lanes.get(lane)
        if found is None:
            return PartitionKey(lane.queue, lane.partition) in self._unsearched
        if found.keyed is not None:
            return found.keyed.is_beginning
        return found.is_behind or found.is_reading

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """Do nothing: a claimed task leaves its lane by itself."""

    def read_later(self, lane: LaneKey, feeds: Mapping[Feed, int]) -> None:
        found = self._lanes.get(lane)
        if found is None or not feeds:
            return
        if found.keyed is None and any(feed.name for feed in feeds):
            found.read_apart(self._tasks, self._clock)
        if found.keyed is not None:
            found.keyed.read_later(feeds)
        else:
            found.set_back_to(min(feeds.values()))
        self._read_on(found)

    def read_together(self, lane: LaneKey) -> None:
        found = self._lanes.get(lane)
        if found is not None and found.keyed is not None:
            found.keyed.read_together()
            self._read_on(found)

    def room_freed(self, lane: LaneKey | None = None) -> None:
        lanes = self._lanes.values() if lane is None else [self._lanes.get(lane)]
        for found in lanes:
            if found is not None:
                if found.keyed is not None:
                    found.keyed.room_freed()
                self._read_on(found)

    def _read_on(self, lane: LaneReader) -> None:
        """Read a lane, if it is behind, as soon as its turn comes."""
        if lane.is_behind:
            self._to_read.add(lane)
        self._changed.set()

    def redeliver(self) -> None:
        self._begin_sweep()
        self._sweep_due, self._sweep_at = Sweep.AGAIN, 0.0
        for lane in self._lanes.values():
            if lane.keyed is not None:
                lane.keyed.read_on()
                self._read_on(lane)
        self._changed.set()

    async def receive(self, room: Room) -> Sequence[Trigger]:
        while True:
            self._changed.clear()
            if self._clock.monotonic() >= self._heal_at:
                self._begin_sweep()
            is_news = bool(self._unsearched)
            if is_news or (self._sweep_due and self._clock.monotonic() >= self._sweep_at):
                await self._search()
            for lane in self._to_read.in_turn():
                if lane.keyed is not None:
                    was_searching = lane.keyed.is_searching
                    found = await self._read_keys(lane, lane.keyed, room)
                    if found is not None or was_searching:
                        self._to_read.on_read(lane)
                        return [*self._arrived(room, found or ()), *(found or ())]
                    if lane.keyed is None:  # it is read by position again
                        is_news = True
                        continue
                elif (space := room.ahead(lane.key)) > 0:
                    self._to_read.on_read(lane)
                    triggers = await self._read(lane, min(space, PAGE), room)
                    if not lane.is_behind:
                        self._to_read.drop(lane.key)
                    if triggers:
                        return [*self._arrived(room, triggers), *triggers]
                    is_news = True
                    continue
                self._to_read.drop(lane.key)
            if (arrived := self._arrived(room, ())) or is_news:
                return arrived
            if self._clock.monotonic() >= self._sweep_at:
                for lane in [*self._to_sweep.values()]:
                    if not lane.is_sweeping:
                        self._to_sweep.pop(lane.key, None)
                    elif (space := room.behind(lane.key)) > 0 and (
                        found := await self._sweep(lane, space)
                    ):
                        return found
            await self._wait()

    async def close(self) -> None:
        await self._notifier.close()

    async def status(self, queues: Collection[str]) -> ChannelStatus | None:
        return None

    def close_sender(self) -> None:
        """Do nothing: nothing waits to be sent."""

    async def _search(self) -> None:
        """Find the lanes that have rows. Read new ones, and sweep all of them if a sweep is due."""
        unsearched, sweep = self._unsearched, self._sweep_due
        self._sweep_due, began = Sweep.NONE, self._clock.monotonic()
        try:
            found = await self._tasks.database.read(self._tasks.lanes())
        except BaseException:
            self._sweep_due = max(self._sweep_due, sweep)
            raise
        if sweep:
            self._sweep_at = began + (self._clock.monotonic() - began) / SWEEP_SHARE
        for key in sorted(found, key=lambda lane: (lane.priority, lane)):
            is_new = key not in self._lanes
            if (lane := self._reader(key)) is None:
                continue
            lane.is_behind |= is_new or bool(sweep)
            # A former owner may have kept tasks of ordering keys out of memory behind its position.
            is_inherited = is_new and lane.read_seq > 0
            if sweep is Sweep.AGAIN or ((sweep or is_inherited) and lane.sweep_seq is None):
                lane.sweep_seq = 0
            if sweep and lane.keyed is not None:
                lane.keyed.begin_sweep()
            if lane.is_sweeping:
                self._to_sweep[key] = lane
            self._read_on(lane)
        if self._unsearched is unsearched:  # else search again, because the partitions changed
            self._unsearched = set()
        if others := [Lane(*key, 0) for key in found if key[:2] not in self._assigned]:
            # Tell the node about partitions that it does not know, because a submitter declares
            # more partitions.
            self._on_notification(Notification(ready=others))

    def _reader(self, key: LaneKey) -> LaneReader | None:
        """Return the reader of a lane, after making it if needed; None for a partition that is not
        assigned."""
        lane = self._lanes.get(key)
        if lane is None:
            partition = PartitionKey(key.queue, key.partition)
            positions = self._assigned.get(partition)
            if positions is not None:
                lane = self._lanes[key] = self._new_reader(key, positions.get(key.priority, 0))
                lane.is_behind = partition in self._unsearched
                if lane.is_sweeping:
                    self._to_sweep[key] = lane
                since = self._clock.monotonic() - EARLY_SECONDS
                lane.announced = [
                    seq
                    for at, seq in self._early.pop(key, ())
                    if at >= since and seq > lane.read_seq
                ]
        return lane

    def _note_early(self, key: LaneKey, seq: int) -> None:
        """Remember an announced position of a lane that this node does not read yet."""
        early = self._early.pop(key, [])
        self._early[key] = [*early[1 - MOST_ANNOUNCED :], (self._clock.monotonic(), seq)]
        if len(self._early) > MOST_EARLY_LANES:
            del self._early[next(iter(self._early))]

    def _new_reader(self, key: LaneKey, position: int) -> LaneReader:
        return LaneReader(key, position, position)

    def _arrived(self, room: Room, read: Sequence[Trigger]) -> Sequence[Trigger]:
        """Return triggers that came through a broker instead of their rows. Return as many as there
        is room for, besides the triggers `read` just now."""
        return ()

    async def _read(self, lane: LaneReader, limit: int, room: Room) -> Sequence[Trigger]:
        """Return the next triggers above the reader's position."""
        # Reset both before the read, because a notification during the read sets them again.
        lane.is_behind, lane.set_back = False, _NO_SEQ
        lane.is_reading = True
        above = lane.read_seq
        try:
            rows = await self._rows(lane, above, limit)
        except BaseException:
            lane.is_behind = True
            raise
        finally:
            lane.is_reading = False
        if not rows:
            return ()
        if len(rows) == limit:
            lane.is_behind = True
        lane.read_seq = min(rows[-1].seq, lane.set_back)
        lane.announced = [position for position in lane.announced if position > lane.read_seq]
        known, lane.highest_seq = (
            lane.highest_seq,
            min(max(lane.highest_seq, rows[-1].seq), lane.set_back),
        )
        if len(rows) == limit and room.reads_by_key(lane.key):
            lane.keyed = KeyedReader(
                lane.key, lane.read_seq, lane.highest_seq, self._tasks, self._clock
            )
            for position in lane.announced:
                lane.keyed.announced_from(position)
            lane.announced = []
        return rows if rows[0].seq > known else healed(rows, known)

    async def _read_keys(
        self, lane: LaneReader, keyed: KeyedReader, room: Room
    ) -> Sequence[Trigger] | None:
        """Return the next triggers of a long lane, which may be none; None if there is nothing to
        read now. Read by position again when the lane is short."""
        rows = await keyed.read(room)
        lane.read_seq = keyed.read_through
        if rows is None and keyed.is_done:
            lane.keyed = None
            room.choose_keys(lane.key, KeyNews())
            lane.read_seq = lane.highest_seq = max(keyed.read_through, keyed.highest)
        return rows

    async def _sweep(self, lane: LaneReader, limit: int) -> Sequence[Trigger]:
        """Return one page of the rows behind the reader. Rows that are new to the node had lost
        their notification."""
        began = self._clock.monotonic()
        if lane.sweep_seq is None:
            assert lane.keyed is not None
            found = healed(await lane.keyed.sweep(limit), lane.keyed.highest)
        else:
            rows = await self._rows(lane, lane.sweep_seq, limit)
            is_more = len(rows) == limit and rows[-1].seq < lane.read_seq
            lane.sweep_seq = rows[-1].seq if is_more else None
            before = [trigger for trigger in rows if trigger.seq <= lane.read_seq]
            found = healed(before, lane.highest_seq)
        self._sweep_at = began + (self._clock.monotonic() - began) / SWEEP_SHARE
        return found

    async def _rows(self, lane: LaneReader, above: int, limit: int) -> list[Trigger]:
        return await self._tasks.database.read(self._tasks.ready(lane.key, above, limit))

    def _begin_sweep(self) -> None:
        self._sweep_due = max(self._sweep_due, Sweep.NEW)
        self._heal_at = self._clock.monotonic() + self._heal_every

    async def _wait(self) -> None:
        soonest = self._clock.monotonic() + 0.01
        until = self._heal_at
        if self._to_sweep or self._sweep_due:
            until = min(until, max(self._sweep_at, soonest))
        try:
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _on_any_notification(self, notification: Notification) -> None:
        if notification.is_empty:
            self.redeliver()
        for lane in notification.ready:
            self._read_again(lane)
        self._on_notification(notification)

    def _read_again(self, news: Lane) -> None:
        """Read the lane again from the position that `news` announces."""
        key = LaneKey(news.queue, news.partition, news.priority)
        if (found := self._reader(key)) is None:
            self._note_early(key, news.first_seq)
            return
        if found.keyed is not None:
            found.keyed.announced_from(news.first_seq)
        else:
            found.set_back_to(news.first_seq - 1)
        self._read_on(found)


def healed(triggers: Sequence[Trigger], known: int) -> list[Trigger]:
    """Return the triggers, with the path HEAL for those up to position `known`: a new trigger there
    has lost its notification."""
    return [
        trigger if trigger.seq > known else msgspec.structs.replace(trigger, path=TriggerPath.HEAL)
        for trigger in triggers
    ]
