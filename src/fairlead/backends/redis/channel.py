"""The trigger channel through Redis: one message for each trigger, in the shuffle-sharded queue of
`fairlead.sharded`.

Any node takes any trigger, in the order that the sharded queue gives to tenants; priorities are
sections of the queue. The task rows stay the truth (`fairlead.backends.sql.channel`). Three rules
follow:

- The node that leases a partition compares the rows of the partition with Redis. The node reads the
  rows as the database channel does, after notifications and by sweeps, and writes to Redis each
  trigger that is missing there. The comparison restores triggers that Redis has lost or never
  received.
- Redis keeps a mark of task and version as long as the trigger waits or a node holds the trigger.
  The mark prevents a second write of the same trigger.
- A node holds a trigger until it has claimed the task or lost the claim. When a node stops, it
  writes its held triggers back to Redis. Other nodes reclaim the held triggers of a dead node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from fairlead.backends.redis import free_order
from fairlead.backends.redis.durability import risks
from fairlead.backends.redis.probe import probed
from fairlead.backends.redis.sender import RedisSender
from fairlead.backends.redis.sharded.claims import LaneClaim, PriorityLane
from fairlead.backends.redis.sharded.consumer import Consumer
from fairlead.backends.redis.sharded.endpoint import GROUP, RedisEndpoint
from fairlead.backends.redis.sharded.errors import QueueDamaged, cause_of
from fairlead.backends.redis.sharded.lanes import Delivery
from fairlead.backends.redis.sharded.message import ClaimEnd
from fairlead.backends.redis.sharded.running import run_async
from fairlead.backends.redis.trigger_messages import decode, encode
from fairlead.backends.sql.channel import PAGE, DatabaseChannel, healed
from fairlead.clock import Clock
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.model import LaneKey, NewTask, Submitted, Trigger
from fairlead.ports.notification import Lane as NotifiedLane
from fairlead.ports.notification import Notification, with_triggers
from fairlead.ports.notifier import Notifier
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import (
    ChannelStatus,
    KeyNews,
    Owner,
    QueueDeclaration,
    QueueLoad,
    Room,
)

log = logging.getLogger("fairlead.redis")

GRACE = 0.1
"""Seconds between a notification and the comparison of its rows with Redis. Nodes claim most of the
triggers in that time."""

MOST_CARRIED = 10_000
"""Greatest number of tasks in a submit that sends its triggers to Redis. After a larger submit,
nodes send the triggers when they compare their rows with Redis, a thousand for each read."""

MOST_DELIVERIES = 1_000_000_000
"""Deliveries after which a trigger becomes a dead letter. The number is too great to be reached,
because the task's row counts the tries."""

_PAUSE_AFTER_OUTAGE = 1.0  # seconds
_LEAVE_SECONDS = 5.0


class _PageRoom:
    """Room for a full page in every lane, because the comparison does not keep the rows."""

    def ahead(self, lane: LaneKey) -> int:
        return PAGE

    def behind(self, lane: LaneKey) -> int:
        return PAGE

    def of_keys(self, lane: LaneKey, news: KeyNews) -> None:
        return None


class RedisChannel(DatabaseChannel):
    """See `fairlead.ports.trigger_channel.TriggerChannel`."""

    carries_triggers = True
    decides_order = True
    reads_by_key = False

    def __init__(
        self,
        url: str,
        store: TaskStore,
        notifier: Notifier,
        counted: Callable[[str, int], None],
        clock: Clock,
        heal_every: float = 15.0,
    ) -> None:
        """Raise ConfigurationError for a bad URL."""
        super().__init__(store, notifier, clock, heal_every)
        endpoint = RedisEndpoint.of(url)
        if endpoint.server.confirmation is not None:
            raise ConfigurationError(
                f"{endpoint.location}: a channel needs no wait_replicas, because rows restore lost"
                " triggers; leave it out"
            )
        # A longer prefix separates these queues from the queues of an application that keeps its
        # tasks in the same Redis.
        self._endpoint = replace(endpoint, prefix=f"{endpoint.prefix}:triggers")
        self.location = endpoint.location
        self._sender = RedisSender(self._endpoint, counted)
        self._counted = counted
        self._consumer: Consumer | None = None
        self._work: asyncio.Task[None] | None = None
        self._room: Room | None = None
        self._held: dict[str, Trigger] = {}
        """Triggers that were read and are not settled, by task id."""
        self._waiting: list[Trigger] = []
        """Triggers that were read and that `receive` has not returned yet."""
        self._can_receive = asyncio.Event()
        self._to_compare: list[NotifiedLane] = []
        """Lanes to compare with Redis when GRACE has passed."""
        self._weights_changed = asyncio.Event()
        self._failure: BaseException | None = None
        """The error that broke the consumer or the comparison of rows; `receive` raises it."""

    # the submitter's side -------------------------------------------------------------------------

    def check_queue(self, queue: QueueDeclaration) -> None:
        free_order.check_queue(queue, self.location)

    def check_tasks(self, tasks: Sequence[NewTask]) -> None:
        free_order.check_tasks(tasks, self.location)

    def carrying(
        self, notification: Notification, tasks: Sequence[NewTask], submitted: Sequence[Submitted]
    ) -> Notification:
        return with_triggers(notification, tasks, submitted, known_seq_only=False)

    def announce(self, notification: Notification) -> None:
        if 0 < len(notification.triggers) <= MOST_CARRIED:
            self._sender.send(notification.triggers)
        self._notifier.notify(
            msgspec.structs.replace(notification, triggers=[])
            if notification.triggers
            else notification
        )

    def close_sender(self) -> None:
        self._sender.close()

    # the node's side ------------------------------------------------------------------------------

    def join(
        self, partitions: Mapping[str, int], node: str, owner: Owner, session_seconds: float
    ) -> None:
        if self._consumer is None:
            self._failure = None
            self._consumer = Consumer(
                self._endpoint, node, MOST_DELIVERIES, self._received, self._room_for, self._clock
            )
            self._work = asyncio.create_task(self._run(self._consumer))
            self._work.add_done_callback(self._ended)
        self._consumer.serve(partitions)

    async def leave(self) -> None:
        """Stop claiming, and write the triggers that this node still holds back to Redis for other
        nodes."""
        if self._consumer is None:
            return
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._consumer.stop_claiming()
                await self._write_back(self._consumer)
        except (StoreUnavailable, QueueDamaged, TimeoutError) as error:
            fields = {
                "redis": self.location,
                "seconds": self._endpoint.reclaim,
                "error": str(error),
            }
            log.warning(
                "could not release the triggers of this node; other nodes reclaim them later",
                extra=fields,
            )

    async def close(self) -> None:
        await self.leave()
        consumer, self._consumer = self._consumer, None
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
            self._work = None
        if consumer is not None:
            await consumer.close()
        self._room = None
        await super().close()

    async def receive(self, room: Room) -> Sequence[Trigger]:
        if self._room is not room:
            self._room = room
            self.room_freed()
        while True:
            self._can_receive.clear()
            if self._failure is not None:
                raise self._failure
            if self._waiting:
                received, self._waiting = self._waiting, []
                return received
            await self._can_receive.wait()

    def settled(self, triggers: Iterable[Trigger]) -> None:
        ids = [trigger.id for trigger in triggers]
        for id in ids:
            self._held.pop(id, None)
        if self._consumer is not None:
            self._consumer.done(ids)

    def room_freed(self) -> None:
        if self._consumer is not None:
            self._consumer.poke()

    async def status(self, queues: Collection[str]) -> ChannelStatus | None:
        async with probed(self._endpoint) as (redis, took):
            loads = [await self._load(redis, queue) for queue in queues]
            found = await risks(redis, self._endpoint.prefix, False, None)
        return ChannelStatus(f"accepts writes, responds within {took:,.0f} ms", [], loads, found)

    async def _load(self, redis: Any, queue: str) -> QueueLoad:
        lanes = self._endpoint.lanes(queue, MOST_DELIVERIES)
        waiting = held = 0
        ages = []
        for priority in await run_async(redis, queue, lanes.known()):
            steps = lanes.at(priority)
            stats = await run_async(redis, queue, steps.stats(GROUP))
            waiting, held = waiting + stats.waiting, held + stats.pending
            ages.append(None if stats.oldest is None else max(0.0, time.time() - stats.oldest))
        return QueueLoad(
            queue, waiting, held, max((age for age in ages if age is not None), default=None)
        )

    # deliveries from Redis ------------------------------------------------------------------------

    async def _run(self, consumer: Consumer) -> None:
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(consumer.run())
                parts.create_task(self._compare_rows())
                parts.create_task(self._copy_weights(consumer))
        except ExceptionGroup as group:
            raise cause_of(group) from group

    def _ended(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._failure = error
            self._can_receive.set()

    def _room_for(self, queue: str, priority: int) -> int:
        if self._room is None:
            return 0
        waiting = sum(
            1 for trigger in self._waiting if (trigger.queue, trigger.priority) == (queue, priority)
        )
        return self._room.ahead(LaneKey(queue, 0, priority)) - waiting

    def _received(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        assert self._consumer is not None
        claims, corrupt = self._consumer.claims, []
        for priority, message in deliveries:
            claim = LaneClaim(PriorityLane(queue, priority), message.id)
            try:
                trigger = decode(queue, priority, message)
            except msgspec.DecodeError as error:
                fields = {
                    "queue": queue,
                    "priority": priority,
                    "id": message.id,
                    "error": str(error),
                }
                log.error("skipped an unreadable message from Redis", extra=fields)
                claims.add(message.id, claim)
                corrupt.append(message.id)
                continue
            if claims.add(trigger.id, claim):
                self._held[trigger.id] = trigger
                self._waiting.append(trigger)
        if corrupt:
            self._consumer.done(corrupt)
            self._counted("corrupt_triggers", len(corrupt))
        self._can_receive.set()

    async def _write_back(self, consumer: Consumer) -> None:
        """End the claims of this node, and write their triggers back for other nodes."""
        held, self._held, self._waiting = self._held, {}, []
        ends: defaultdict[PriorityLane, list[ClaimEnd]] = defaultdict(list)
        for task_id, trigger in held.items():
            claims = consumer.claims.pop(task_id)
            # Each claim that ends removes the mark of its message. So write a trigger that was
            # delivered twice with its last claim only.
            for n, claim in enumerate(claims, 1):
                end = (
                    ClaimEnd(claim.id, "done")
                    if n < len(claims)
                    else ClaimEnd(claim.id, "again", encode(trigger))
                )
                ends[claim.lane].append(end)
        await consumer.finish(ends)

    # comparison of rows with Redis ----------------------------------------------------------------

    async def _compare_rows(self) -> None:
        """Compare the rows of the leased partitions with Redis, for as long as the node lives."""
        outage = ""
        while True:
            try:
                await super().receive(_PageRoom())
                outage = ""
            except (StoreUnavailable, QueueDamaged) as error:
                if str(error) != outage:
                    outage = str(error)
                    log.warning(
                        "rows cannot be compared with Redis",
                        extra={"redis": self.location, "error": outage},
                    )
                await self._clock.sleep(_PAUSE_AFTER_OUTAGE)

    async def _rows(self, lane: Any, above: int, limit: int) -> list[Trigger]:
        """Read rows. Write the triggers that Redis does not have to Redis before returning, because
        the lane's position then moves past their rows."""
        rows = await super()._rows(lane, above, limit)
        if rows and self._consumer is not None:
            steps = self._consumer.lanes(lane.key.queue).at(lane.key.priority)
            entries = [encode(row) for row in healed(rows, lane.highest_seq)]
            # Check before writing. In a long backlog Redis has nearly all triggers, and a check
            # costs a tenth of a refused write.
            is_there = await self._consumer.do(
                lane.key.queue, steps.marked([entry.once for entry in entries])
            )
            missing = [
                entry for entry, is_marked in zip(entries, is_there, strict=True) if not is_marked
            ]
            await self._consumer.do(lane.key.queue, steps.put(missing))
        return rows

    async def _copy_weights(self, consumer: Consumer) -> None:
        """Copy the weights of the store to Redis after each change, and at the interval of sweeps
        because Redis may lose weights."""
        while True:
            self._weights_changed.clear()
            try:
                for queue in consumer.queues:
                    await self._copy_queue_weights(consumer, queue)
                async with asyncio.timeout(self._heal_every):
                    await self._weights_changed.wait()
            except (StoreUnavailable, QueueDamaged):
                await self._clock.sleep(_PAUSE_AFTER_OUTAGE)  # _compare_rows logs the outage
            except TimeoutError:
                pass

    async def _copy_queue_weights(self, consumer: Consumer, queue: str) -> None:
        settings = await self._tasks.database.read(self._tasks.queue_settings())
        if queue in settings and settings[queue].version:
            weights = await self._tasks.database.read(self._tasks.weights(queue))
            lanes = consumer.lanes(queue)
            for priority in await consumer.do(queue, lanes.known()):
                await consumer.do(queue, lanes.at(priority).set_weights(weights))

    def _on_any_notification(self, notification: Notification) -> None:
        if notification.is_empty or notification.control:
            self._weights_changed.set()
        if notification.is_empty:
            super()._on_any_notification(notification)
            return
        if notification.ready:
            if not self._to_compare:
                asyncio.get_running_loop().call_later(GRACE, self._compare_lanes)
            self._to_compare += notification.ready
        self._on_notification(notification)

    def _compare_lanes(self) -> None:
        lanes, self._to_compare = self._to_compare, []
        for lane in lanes:
            self._read_again(lane)
