"""The trigger channel through Kafka: a message for each trigger, a topic for each queue, and
partitions shared by one consumer group.

The rows of the lanes stay the truth (`fairlead.backends.sql.channel`); Kafka delivers copies of
the triggers first, so that a node reads from the store only the tasks that it claims. Three rules
follow:

- A trigger without room in the node is dropped, and its lane is marked as behind: the reader of
  the rows finds the trigger later. So a flood neither fills the memory nor delays the messages
  after it.
- A trigger that the reader of the rows has read, or will read, is not taken from Kafka as well.
- A notification of the database waits a moment for its twin: the same notification from Kafka. If
  none comes, because the broker is unavailable or somebody submitted without a channel, the lane is
  read.

An offset is done when its trigger was claimed or refused, or when the reader of the rows will find
the task without this trigger. An offset is done after HOLD_SECONDS in any case, because a limit
that holds back the trigger must not hold back the offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.backends.kafka.messages import encode_hint, encode_trigger, key_of
from fairlead.backends.kafka.outage_log import KafkaOutageLog
from fairlead.backends.kafka.prefix_owner import PrefixOwner
from fairlead.backends.kafka.receiver import Received, Receiver
from fairlead.backends.kafka.sender import KafkaSender, Outgoing
from fairlead.backends.sql.channel import DatabaseChannel, LaneReader
from fairlead.clock import MICROS, Clock
from fairlead.core.sharding.offsets import Progress
from fairlead.model import LaneKey, NewTask, PartitionKey, Submitted, Trigger
from fairlead.ports.notification import Lane, Notification, with_triggers
from fairlead.ports.notifier import Notifier
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.trigger_channel import ChannelStatus, Owner, Room

log = logging.getLogger("fairlead.kafka")

GRACE = 0.25
"""Seconds without any message after which a notification of the database stops waiting for its
twin."""

MOST_GRACE = 2.0
"""Longest time, in seconds, that a notification of the database waits."""

MOST_CARRIED = 10_000
"""Greatest number of tasks whose triggers a submit sends. For a greater submit, messages only name
the lanes to read: a read of the rows returns a thousand triggers at a time."""

MOST_ARRIVED = 10_000
"""Greatest number of triggers that have arrived and wait for room. Above it, half of them are left
to the reader of the rows, the lowest priority first."""

SEND_SECONDS = 5.0
"""Seconds after which an unsent message is left to the sweeps."""

HOLD_SECONDS = 5.0
"""Longest time, in seconds, that an offset waits for its trigger."""

LATE_SECONDS = 5.0
"""Age of a message, in seconds, above which a trigger below the position of the reader of the rows
counts as read from its row."""

COMMIT_EVERY = 1.0
"""Seconds between two commits of offsets."""

_HAND_OVER_SECONDS = 30.0


class _Topics:
    """The topics of triggers."""

    def __init__(
        self, endpoint: KafkaEndpoint, owner: PrefixOwner, partitions: Mapping[str, int]
    ) -> None:
        self._endpoint = endpoint
        self._owner = owner
        self._partitions = partitions

    def ensure(self, queue: str, partitions: int) -> None:
        self._owner.require()
        count = max(partitions, self._partitions.get(queue, 0))
        self._endpoint.ensure({queue: count}, SEND_SECONDS)

    def shortage(self, topic: str, seconds: float) -> None:
        """Return None: rows have what is not sent."""


class _Twins:
    """Notifications of the database that wait for the same notification from Kafka. Times are
    seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._waiting: dict[Lane, float] = {}
        self._brought: dict[Lane, float] = {}
        """Time at which Kafka brought a lane; the notification of the database may come later."""
        self._brought_at = 0.0

    def wait(self, lane: Lane, now: float) -> None:
        """Let a notification of the database wait for its twin."""
        if lane not in self._brought:
            self._waiting.setdefault(lane, now)

    def brought(self, lane: Lane, now: float) -> None:
        """Record a lane that Kafka has brought."""
        self._brought_at = now
        self._waiting.pop(lane, None)
        self._brought[lane] = now

    def missing(self, now: float) -> tuple[list[Lane], float | None]:
        """Return the lanes that have waited long enough, and the seconds until the next check; None
        if no lane waits."""
        found = []
        for lane, since in self._waiting.items():
            until = min(max(since, self._brought_at) + GRACE, since + MOST_GRACE)
            if until > now:
                break
            found.append(lane)
        for lane in found:
            del self._waiting[lane]
        return found, until - now if self._waiting else None

    def drop(self, before: float) -> None:
        """Drop lanes brought before this time: no notification of the database takes longer."""
        while self._brought and next(iter(self._brought.values())) <= before:
            del self._brought[next(iter(self._brought))]


class KafkaChannel(DatabaseChannel):
    """A channel of triggers carried by Kafka. See
    `fairlead.ports.trigger_channel.TriggerChannel`."""

    shares_partitions = True

    def __init__(
        self,
        url: str,
        store: SqlStore,
        notifier: Notifier,
        partitions: Mapping[str, int],
        counted: Callable[[str, int], None],
        clock: Clock,
    ) -> None:
        """`partitions`: number of partitions of each queue, as far as this process knows. Raise
        ConfigurationError for a bad URL."""
        super().__init__(store, notifier, clock)
        self._endpoint = KafkaEndpoint.of(url)
        self.location = self._endpoint.location
        self._prefix_owner = PrefixOwner(self._endpoint, store)
        self._sender = KafkaSender(
            self._endpoint,
            _Topics(self._endpoint, self._prefix_owner, partitions),
            SEND_SECONDS,
            partial(counted, "unsent_triggers", 1),
            KafkaOutageLog(
                "triggers were not sent; the sweeps will find their rows",
                {"channel": self.location},
            ),
        )
        self._counted = counted
        self._receiver: Receiver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: Owner | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._progress = Progress()
        self._twins = _Twins()
        self._is_waiting_for_twins = False
        self._waiting: dict[LaneKey, deque[Trigger]] = {}
        """Triggers that have arrived and that `receive` has not returned yet."""
        self._failure: BaseException | None = None
        """The error that broke the consumer; `receive` raises it."""

    # the submitter's side -------------------------------------------------------------------------

    def carrying(
        self,
        notification: Notification | None,
        tasks: Sequence[NewTask],
        submitted: Sequence[Submitted],
    ) -> Notification | None:
        return with_triggers(notification, tasks, submitted)

    def announce(self, notification: Notification) -> None:
        if not notification.triggers:
            self._notifier.notify(notification)
        elif not notification.is_empty:  # otherwise the transaction has carried the rest
            self._notifier.notify(msgspec.structs.replace(notification, triggers=[]))
        if not (notification.ready or notification.triggers):
            return
        self._sender.offer(_messages(notification))

    def close_sender(self) -> None:
        self._sender.close()

    # the node's side ------------------------------------------------------------------------------

    async def open(self, on_notification: Callable[[Notification], None], node: str) -> None:
        self._loop = asyncio.get_running_loop()
        await super().open(on_notification, node)

    def join(
        self, partitions: Mapping[str, int], node: str, owner: Owner, session_seconds: float
    ) -> None:
        if self._receiver is None:
            self._owner = owner
            self._receiver = Receiver(
                self._endpoint, self._prefix_owner, node, session_seconds, self
            )
            self._tick()
        self._receiver.serve(partitions)

    async def leave(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await asyncio.to_thread(receiver.close)
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        await self.leave()
        await super().close()
        self._loop = None

    async def status(self, queues: Collection[str]) -> ChannelStatus | None:
        await asyncio.to_thread(self._prefix_owner.check)
        return await asyncio.to_thread(self._endpoint.status, queues)

    def assign(self, partitions: Mapping[PartitionKey, Mapping[int, int]]) -> None:
        super().assign(partitions)
        for key in [key for key in self._waiting if not self._is_assigned(key)]:
            # The rows are read when the partition is assigned again.
            self.settled(self._waiting.pop(key))

    def _new_reader(self, key: LaneKey, position: int) -> LaneReader:
        """Return a reader that sweeps at once: triggers that came out of order, and that the
        previous owner had not handled, lie below its last position."""
        lane = super()._new_reader(key, position)
        lane.sweep_seq = 0
        return lane

    def _is_assigned(self, key: LaneKey) -> bool:
        return PartitionKey(key.queue, key.partition) in self._assigned

    def settled(self, triggers: Iterable[Trigger]) -> None:
        self._progress.settled(triggers)

    def _arrived(self, room: Room, read: Sequence[Trigger]) -> Sequence[Trigger]:
        if self._failure is not None:
            raise self._failure
        if not self._waiting:
            return ()
        given: list[Trigger] = []
        taken = Counter(LaneKey(each.queue, each.partition, each.priority) for each in read)
        for key in sorted(self._waiting, key=lambda lane: lane.priority):
            waiting, lane = self._waiting[key], self._reader(key)
            assert lane is not None  # `assign` drops what waits in other partitions
            if lane.is_behind:  # the reader will read the rows above its position
                ahead = [trigger for trigger in waiting if trigger.seq > lane.read_seq]
                waiting = self._waiting[key] = deque(
                    trigger for trigger in waiting if trigger.seq <= lane.read_seq
                )
                self.settled(ahead)
            space = room.ahead(key) - taken[key]
            for _ in range(min(len(waiting), space)):
                trigger = waiting.popleft()
                taken[key] += 1
                given.append(trigger)
                lane.read_seq = max(lane.read_seq, trigger.seq)
                lane.highest_seq = max(lane.highest_seq, trigger.seq)
            if not waiting:
                del self._waiting[key]
        return given

    @property
    def _arrived_count(self) -> int:
        return sum(map(len, self._waiting.values()))

    # notifications from the database --------------------------------------------------------------

    def _on_any_notification(self, notification: Notification) -> None:
        if notification.is_empty:
            super()._on_any_notification(notification)
            return
        now = self._clock.monotonic()
        for lane in notification.ready:
            if self._is_assigned(LaneKey(lane.queue, lane.partition, lane.priority)):
                self._twins.wait(lane, now)
        if not self._is_waiting_for_twins:
            self._wait_for_twins()
        self._on_notification(notification)

    def _wait_for_twins(self) -> None:
        """Read the lanes of which Kafka has brought nothing."""
        missing, again = self._twins.missing(self._clock.monotonic())
        for lane in missing:
            self._read_again(lane)
        self._is_waiting_for_twins = again is not None
        if again is not None:
            asyncio.get_running_loop().call_later(again, self._wait_for_twins)

    # callbacks of the consumer, in its own thread -------------------------------------------------

    def on_assigned(self, keys: Collection[PartitionKey]) -> None:
        self._call(self._gained, keys)

    def on_revoked(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        if self._loop is None:
            return {}
        work = asyncio.run_coroutine_threadsafe(self._hand_over(keys), self._loop)
        try:
            return work.result(_HAND_OVER_SECONDS)
        except TimeoutError:
            work.cancel()
            log.error("partitions were not handed over in time", extra={"partitions": sorted(keys)})
            return {}

    def on_lost(self, keys: Collection[PartitionKey]) -> None:
        self._call(self._lost, keys)

    def on_messages(self, messages: Sequence[Received]) -> None:
        self._call(self._received, messages)

    def on_failure(self, error: BaseException) -> None:
        self._call(self._failed, error)

    def _call(self, what: Callable[..., None], about: object) -> None:
        with suppress(RuntimeError):  # the loop is closed already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(what, about)

    # work of these callbacks, in the event loop ---------------------------------------------------

    def _gained(self, keys: Collection[PartitionKey]) -> None:
        self._progress.begin(keys)
        if self._owner is not None:
            self._owner.on_gained(keys)

    async def _hand_over(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        # Take the positions before the node drops its triggers: the next owner must get the
        # unfinished ones.
        positions = self._progress.to_commit(keys)
        self._drop(keys)
        if self._owner is not None:
            await self._owner.hand_over(keys)
        return positions

    def _lost(self, keys: Collection[PartitionKey]) -> None:
        self._drop(keys)
        if self._owner is not None:
            self._owner.on_lost(keys)

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        self._changed.set()

    def _drop(self, keys: Collection[PartitionKey]) -> None:
        self._progress.end(keys)
        dropped = set(keys)
        for lane in [lane for lane in self._waiting if lane[:2] in dropped]:
            del self._waiting[lane]

    def _received(self, messages: Sequence[Received]) -> None:
        now = self._clock.monotonic()
        late = self._clock.now() / MICROS - LATE_SECONDS
        corrupt = 0
        for key, offset, at, content in messages:
            if key not in self._progress:
                continue  # revoked meanwhile
            self._progress.read(key, offset)
            if isinstance(content, Trigger) and self._takes(content, at < late, now):
                self._progress.hold(content.id, key, offset, now)
                continue
            if isinstance(content, Lane):
                self._twins.brought(content, now)
                self._read_again(content)
            corrupt += content is None
            self._progress.done(key, offset)
        if corrupt:
            self._counted("corrupt_triggers", corrupt)
        if self._arrived_count > MOST_ARRIVED:
            self._leave_to_rows()
        if self._receiver is not None:
            self._receiver.processed(len(messages))
        self._changed.set()

    def _takes(self, trigger: Trigger, is_late: bool, now: float) -> bool:
        """Keep a trigger for the node and return True. Return False if the node has the trigger
        already, or if the row of the task was or will be read."""
        key = LaneKey(trigger.queue, trigger.partition, trigger.priority)
        self._twins.brought(Lane(*key, trigger.seq), now)
        lane = self._reader(key)
        if lane is None:
            return False  # the rows will be read when this node has taken over the partition
        if lane.keyed is not None:
            lane.keyed.announced_from(trigger.seq)
            self._read_on(lane)
            return False
        if trigger.seq > lane.read_seq and lane.is_behind:
            # A read under way may have begun before this row was committed.
            lane.set_back = min(lane.set_back, trigger.seq - 1)
            return False
        if self._progress.holds(trigger.id) or (is_late and trigger.seq <= lane.read_seq):
            return False
        self._waiting.setdefault(key, deque()).append(trigger)
        return True

    def _leave_to_rows(self) -> None:
        """Drop half of the waiting triggers, the lowest priority first. The reader of the rows
        finds them later."""
        for key in sorted(self._waiting, key=lambda lane: -lane.priority):
            if self._arrived_count <= MOST_ARRIVED // 2:
                return
            waiting = self._waiting.pop(key)
            self.settled(waiting)
            self._read_again(Lane(*key, min(trigger.seq for trigger in waiting)))

    def _tick(self) -> None:
        """Commit the offsets that are done, every second."""
        now = self._clock.monotonic()
        self._twins.drop(now - MOST_GRACE)
        self._progress.release_before(now - HOLD_SECONDS)
        if self._receiver is not None:
            if news := self._progress.to_commit():
                self._receiver.commit(news)
            self._timer = asyncio.get_running_loop().call_later(COMMIT_EVERY, self._tick)


def _messages(notification: Notification) -> list[Outgoing]:
    """Return a message for each trigger, and a hint for each lane whose triggers are missing or too
    many."""
    carried = notification.triggers if len(notification.triggers) <= MOST_CARRIED else []
    first: dict[tuple[str, int, int], int] = {}
    for t in carried:
        lane = (t.queue, t.partition, t.priority)
        first[lane] = min(t.seq, first.get(lane, t.seq))
    hints = [
        lane
        for lane in notification.ready
        if first.get((lane.queue, lane.partition, lane.priority)) != lane.first_seq
    ]
    return [
        *(Outgoing(t.queue, t.partition, key_of(t), encode_trigger(t)) for t in carried),
        *(Outgoing(lane.queue, lane.partition, None, encode_hint(lane)) for lane in hints),
    ]
