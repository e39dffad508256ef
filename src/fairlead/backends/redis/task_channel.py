"""The trigger channel of tasks that live in Redis: the tasks themselves come, claimed by this
node."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from fairlead.backends.redis import free_order
from fairlead.backends.redis.sharded.claims import Lane
from fairlead.backends.redis.sharded.consumer import Consumer
from fairlead.backends.redis.sharded.endpoint import Endpoint
from fairlead.backends.redis.sharded.lanes import Delivery
from fairlead.backends.redis.sharded.message import Entry, Finish
from fairlead.clock import Clock
from fairlead.model import LaneKey, NewTask, PartitionKey, Submitted, Trigger
from fairlead.ports.notification import Notification
from fairlead.ports.notifier import Notifier
from fairlead.ports.trigger_channel import ChannelStatus, Owner, QueueDeclaration, Room

log = logging.getLogger("fairlead.redis")


class Tasks(Protocol):
    """The task store, as this channel needs it."""

    endpoint: Endpoint
    consumer: Consumer | None

    def take(self, queue: str, delivery: Delivery) -> Trigger | None:
        """Keep what was claimed, and answer its trigger; None if it is no task."""

    def settled(self, task_ids: Iterable[str]) -> None:
        """The engine is through with these, or has claimed them."""

    async def give_back(self, task_ids: Collection[str]) -> None:
        """These did not run here: they are for anybody. Raises StoreUnavailable."""


class RedisTaskChannel:
    """See `fairlead.ports.trigger_channel.TriggerChannel`."""

    carries_triggers = False
    shares_partitions = False
    decides_order = True

    def __init__(
        self,
        endpoint: Endpoint,
        tasks: Tasks,
        notifier: Notifier,
        counted: Callable[[str, int], None],
        max_lost: int,
        clock: Clock,
    ) -> None:
        """`max_lost`: a task whose nodes went away so often goes to the dead letters."""
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
        self._arrived_of: Counter[tuple[str, int]] = Counter()
        self._waiting: set[str] = set()
        """Tasks that this node has claimed and neither claimed nor given up."""
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

    async def open(self, on_notification: Callable[[Notification], None]) -> None:
        await self._notifier.listen(on_notification)

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
            await consumer.leave()
            waiting, self._waiting = self._waiting, set()
            await self._tasks.give_back(waiting)

    def assign(self, partitions: Mapping[PartitionKey, Mapping[int, int]]) -> None:
        """Every node reads every queue that it serves."""

    def is_behind(self, lane: LaneKey) -> bool:
        return False

    async def receive(self, room: Room) -> Sequence[Trigger]:
        if self._room is None:
            self._room = room
            self.room_freed()
        while True:
            self._changed.clear()
            if self._reading is not None and self._reading.done():
                self._reading.result()  # raises what broke it
            if self._corrupt:
                await self._put_aside()
            if self._arrived:
                arrived, self._arrived = self._arrived, deque()
                self._arrived_of.clear()
                return arrived
            await self._changed.wait()

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """They are claimed, or gone; how their messages end is the task store's matter."""
        ids = [trigger.id for trigger in triggers]
        self._waiting.difference_update(ids)
        if self._tasks.consumer is not None:
            self._tasks.settled(ids)

    def room_freed(self) -> None:
        if self._tasks.consumer is not None:
            self._tasks.consumer.look()

    def redeliver(self) -> None:
        """What was claimed is here, and stays."""

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
        return None

    def close_sender(self) -> None:
        """Nothing is left to be sent."""

    def _room_for(self, queue: str, priority: int) -> int:
        if self._room is None:
            return 0
        return self._room.ahead(LaneKey(queue, 0, priority)) - self._arrived_of[queue, priority]

    def _received(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            trigger = self._tasks.take(queue, delivery)
            if trigger is None:
                self._corrupt.append((queue, delivery))
                continue
            self._arrived.append(trigger)
            self._arrived_of[queue, delivery.priority] += 1
            self._waiting.add(trigger.id)
        self._changed.set()

    async def _put_aside(self) -> None:
        corrupt, self._corrupt = self._corrupt, []
        self._counted("corrupt_triggers", len(corrupt))
        assert self._tasks.consumer is not None
        for queue, delivery in corrupt:
            id = delivery.message.id
            log.error(
                "a message that is no task goes to the dead letters",
                extra={"queue": queue, "message_id": id},
            )
            why = Entry(
                (
                    "error_type",
                    "fairlead.errors.InvalidTask",
                    "error_text",
                    "this message is no task",
                ),
                "",
            )
            await self._tasks.consumer.finish(
                {Lane(queue, delivery.priority): [Finish(id, "dead", why)]}
            )
