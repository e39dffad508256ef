"""The trigger channel of tasks that live in Redis: it delivers the tasks themselves, already
claimed by this node."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from fairlead.backends.redis import free_order
from fairlead.backends.redis.durability import risks
from fairlead.backends.redis.probe import probed
from fairlead.backends.redis.sharded.claims import PriorityLane
from fairlead.backends.redis.sharded.consumer import Consumer
from fairlead.backends.redis.sharded.endpoint import RedisEndpoint
from fairlead.backends.redis.sharded.lanes import Delivery
from fairlead.backends.redis.sharded.message import ClaimEnd
from fairlead.backends.redis.task_messages import reasons
from fairlead.clock import Clock
from fairlead.model import LaneKey, NewTask, PartitionKey, Submitted, Trigger
from fairlead.model.peer import PeerMessage
from fairlead.ports.notification import Notification
from fairlead.ports.notifier import Notifier
from fairlead.ports.trigger_channel import ChannelStatus, Owner, QueueDeclaration, Room

log = logging.getLogger("fairlead.redis")


class Tasks(Protocol):
    """The part of the task store that this channel needs."""

    endpoint: RedisEndpoint
    consumer: Consumer | None

    def take(self, queue: str, delivery: Delivery) -> Trigger | None:
        """Keep a claimed message, and return its trigger; None if the message is no task."""

    def settled(self, task_ids: Iterable[str]) -> None:
        """Note that the engine needs no trigger of these tasks any more."""

    async def release(self, task_ids: Collection[str]) -> None:
        """Write tasks back to their queues, for any node, after claims without a run. Raise
        StoreUnavailable while Redis is unavailable."""


class RedisTaskChannel:
    """A channel of claimed tasks. See `fairlead.ports.trigger_channel.TriggerChannel`."""

    carries_triggers = False
    shares_partitions = False
    decides_order = True
    holds_tasks = True
    reads_by_key = False

    def __init__(
        self,
        endpoint: RedisEndpoint,
        tasks: Tasks,
        notifier: Notifier,
        counted: Callable[[str, int], None],
        max_lost: int,
        clock: Clock,
    ) -> None:
        """`max_lost`: lost runs of a task after which it goes to the dead letters."""
        self.location = endpoint.location
        self._endpoint = endpoint
        self._tasks = tasks
        self._notifier = notifier
        self._counted = counted
        self._max_lost = max_lost
        self._clock = clock
        self._reading: asyncio.Task[None] | None = None
        self._room: Room | None = None
        self._arrived: deque[Trigger] = deque()
        self._arrived_counts: Counter[tuple[str, int]] = Counter()
        self._waiting: set[str] = set()
        """Tasks that this node has claimed in Redis, and that the engine has neither claimed nor
        dropped."""
        self._corrupt: list[tuple[str, Delivery]] = []
        self._changed = asyncio.Event()

    def check_queue(self, queue: QueueDeclaration) -> None:
        free_order.check_queue(queue, self.location)

    def check_tasks(self, tasks: Sequence[NewTask]) -> None:
        free_order.check_tasks(tasks, self.location)

    def carrying(
        self, notification: Notification, tasks: Sequence[NewTask], submitted: Sequence[Submitted]
    ) -> Notification:
        return notification

    def announce(self, notification: Notification) -> None:
        self._notifier.notify(notification)

    def send(self, message: PeerMessage) -> None:
        self._notifier.send(message)

    async def open(self, on_notification: Callable[[Notification], None], node: str) -> None:
        await self._notifier.listen(on_notification, node)

    def join(
        self, partitions: Mapping[str, int], node: str, owner: Owner, session_seconds: float
    ) -> None:
        consumer = self._tasks.consumer
        if consumer is None:
            consumer = self._tasks.consumer = Consumer(
                self._endpoint, node, self._max_lost, self._received, self._room_for, self._clock
            )
            self._reading = asyncio.create_task(consumer.run(), name="fairlead-redis")
            self._reading.add_done_callback(lambda _: self._changed.set())
        consumer.serve(partitions)

    async def leave(self) -> None:
        consumer = self._tasks.consumer
        if consumer is not None:
            await consumer.stop_claiming()
            waiting, self._waiting = self._waiting, set()
            await self._tasks.release(waiting)

    def assign(self, partitions: Mapping[PartitionKey, Mapping[int, int]]) -> None:
        """Do nothing: every node reads every queue that it serves."""

    def is_behind(self, lane: LaneKey) -> bool:
        return False

    def floor(self, lane: LaneKey) -> int | None:
        return None

    async def receive(self, room: Room) -> Sequence[Trigger]:
        if self._room is None:
            self._room = room
            self.room_freed()
        while True:
            self._changed.clear()
            if self._reading is not None and self._reading.done():
                self._reading.result()  # raises the error that ended the reading
            if self._corrupt:
                await self._remove_corrupt()
            if self._arrived:
                arrived, self._arrived = self._arrived, deque()
                self._arrived_counts.clear()
                return arrived
            await self._changed.wait()

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """Note that the engine has claimed or dropped these triggers; the task store ends their
        messages."""
        ids = [trigger.id for trigger in triggers]
        self._waiting.difference_update(ids)
        if self._tasks.consumer is not None:
            self._tasks.settled(ids)

    def unread(self, positions: Mapping[LaneKey, int]) -> None:
        """Do nothing: this channel decides the order."""

    def room_freed(self) -> None:
        if self._tasks.consumer is not None:
            self._tasks.consumer.poke()

    def redeliver(self) -> None:
        """Do nothing: delivered tasks stay claimed by this node."""

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        consumer, self._tasks.consumer = self._tasks.consumer, None
        if consumer is not None:
            await consumer.close()
        self._room = None
        await self._notifier.close()

    async def status(self, queues: Collection[str]) -> ChannelStatus | None:
        server = self._endpoint.server
        async with probed(self._endpoint) as (redis, took):
            found = await risks(redis, self._endpoint.prefix, True, server.confirmation)
        return ChannelStatus(f"accepts writes, responds within {took:,.0f} ms", [], (), found)

    def close_sender(self) -> None:
        """Do nothing: there is nothing to send."""

    def _room_for(self, queue: str, priority: int) -> int:
        if self._room is None:
            return 0
        return self._room.ahead(LaneKey(queue, 0, priority)) - self._arrived_counts[queue, priority]

    def _received(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            trigger = self._tasks.take(queue, delivery)
            if trigger is None:
                self._corrupt.append((queue, delivery))
                continue
            self._arrived.append(trigger)
            self._arrived_counts[queue, delivery.priority] += 1
            self._waiting.add(trigger.id)
        self._changed.set()

    async def _remove_corrupt(self) -> None:
        corrupt, self._corrupt = self._corrupt, []
        self._counted("corrupt_triggers", len(corrupt))
        assert self._tasks.consumer is not None
        for queue, delivery in corrupt:
            id = delivery.message.id
            log.error(
                "a message that is no task goes to the dead letters",
                extra={"queue": queue, "message_id": id},
            )
            why = reasons("fairlead.errors.InvalidTask", "this message is no task")
            await self._tasks.consumer.finish(
                {PriorityLane(queue, delivery.priority): [ClaimEnd(id, "dead", why)]}
            )
