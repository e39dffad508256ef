"""The consumer of a node: it reads the queues on Redis and keeps the claims of messages until their
tasks end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import RedisError

from fairlead.clock import Clock
from fairlead.errors import StoreUnavailable
from fairlead.sharded.claims import Claims, LaneClaim, PriorityLane, by_lane
from fairlead.sharded.clients import is_cluster
from fairlead.sharded.connecting import MOST_CONNECTIONS
from fairlead.sharded.endpoint import GROUP, RedisEndpoint
from fairlead.sharded.errors import QueueDamaged, cause_of
from fairlead.sharded.lanes import Delivery, EmptyScan, Lanes
from fairlead.sharded.message import ClaimEnd
from fairlead.sharded.outage import Outage
from fairlead.sharded.redis_errors import translated_errors
from fairlead.sharded.running import Cancelled, run_async
from fairlead.sharded.steps import Steps, waiting

T = TypeVar("T")

MOST_READ = 200
"""Messages claimed by one read, at most."""

_LOOP_PASSES = 3
"""Passes of the event loop before the next read, so that new messages are received, dispatched and
begun first."""

PRIORITIES = range(10)


@dataclass
class _Waiter:
    """A connection that waits for one queue."""

    redis: Any
    connection: int = 0
    """The number of the connection at the server; 0 if unknown."""


@dataclass
class _QueueReading:
    """One queue as this node reads it."""

    lanes: Lanes
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    waiter: _Waiter | None = None
    news: asyncio.Task[bool] | None = None
    """A wait for new messages that is under way."""
    has_lost_response: bool = False
    """True if a read whose response was lost may have claimed messages."""


class _UnderWay:
    """Reads under way, each of which may claim messages at any moment."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._ended = asyncio.Event()

    @contextmanager
    def track(self, name: str) -> Iterator[None]:
        """Count a read as under way until the end of the block."""
        self._names.add(name)
        try:
            yield
        finally:
            self._names.discard(name)
            self._ended.set()

    async def drain(self) -> None:
        """Wait until no read is under way."""
        while self._names:
            self._ended.clear()
            await self._ended.wait()


class Consumer:
    """Read while there is room, extend the claims of the node, and reclaim what dead nodes have
    left.

    The owner runs `run`, which returns when it is cancelled, and raises the error that broke it.
    """

    def __init__(
        self,
        endpoint: RedisEndpoint,
        name: str,
        max_deliveries: int,
        on_deliveries: Callable[[str, Sequence[Delivery]], None],
        room: Callable[[str, int], int],
        clock: Clock,
    ) -> None:
        """`name`: the node's name. `on_deliveries`: called with a queue and the messages claimed
        from it. `room`: returns how many more messages of this queue and priority the node takes
        now. `max_deliveries`: deliveries after which a message goes to the dead letters."""
        self._endpoint = endpoint
        self._name = name
        self._max_deliveries = max_deliveries
        self._on_deliveries = on_deliveries
        self._room = room
        self._clock = clock
        self._redis: Any = endpoint.server.client_async(max_connections=MOST_CONNECTIONS)
        self.claims = Claims()
        self._readings: dict[str, _QueueReading] = {}
        self._served = asyncio.Event()
        self._done: list[LaneClaim] = []
        self._has_done = asyncio.Event()
        self._claims_nothing = False
        self._under_way = _UnderWay()
        self._outage = Outage(endpoint.location)

    def serve(self, queues: Collection[str]) -> None:
        """Start reading these queues too."""
        for queue in queues:
            if queue not in self._readings:
                lanes = self._endpoint.lanes(queue, self._max_deliveries)
                self._readings[queue] = _QueueReading(lanes)
        self._served.set()

    @property
    def queues(self) -> list[str]:
        """Names of the queues that the consumer reads."""
        return list(self._readings)

    def poke(self) -> None:
        """Make reads that wait for room ask `room` again."""
        for reading in self._readings.values():
            reading.has_room.set()

    def done(self, task_ids: Iterable[str]) -> None:
        """Acknowledge the messages of these tasks, soon."""
        before = len(self._done)
        for task_id in task_ids:
            self._done += self.claims.pop(task_id)
        if len(self._done) > before:
            self._has_done.set()

    async def finish(self, finishes: Mapping[PriorityLane, Sequence[ClaimEnd]]) -> list[LaneClaim]:
        """End claims, each in its own way, and return those that no longer belonged to this
        node. Raise StoreUnavailable, after which some claims may have ended."""
        refused: list[LaneClaim] = []
        for lane, of_lane in finishes.items():
            steps = self.lanes(lane.queue).at(lane.priority)
            are_ours = await self.do(lane.queue, steps.finish(GROUP, self._name, of_lane))
            refused += [
                LaneClaim(lane, end.id)
                for end, is_ours in zip(of_lane, are_ours, strict=True)
                if not is_ours
            ]
        return refused

    def lanes(self, queue: str) -> Lanes:
        """Return the lanes of a queue."""
        if (reading := self._readings.get(queue)) is not None:
            return reading.lanes
        return self._endpoint.lanes(queue, self._max_deliveries)

    async def do(self, queue: str, steps: Steps[Any]) -> Any:
        """Run the steps and return their result. Raise StoreUnavailable while Redis is
        unavailable."""
        return await run_async(self._redis, queue, steps)

    async def run(self) -> None:
        """Read, extend, reclaim and acknowledge for as long as the node lives."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._repeat("extend", self._extend, self._endpoint.reclaim / 6))
                parts.create_task(
                    self._repeat("reclaim", self._reclaim, self._endpoint.reclaim / 3)
                )
                parts.create_task(self._repeat("end", self._end, 0.0))
                reading: set[str] = set()
                while True:
                    self._served.clear()
                    for queue in self._readings.keys() - reading:
                        reading.add(queue)
                        read = partial(self._read, queue)
                        parts.create_task(self._repeat(f"read {queue}", read, 0.0))
                    await self._served.wait()
        except ExceptionGroup as group:
            raise cause_of(group) from group
        finally:
            waits = [one.news for one in self._readings.values() if one.news is not None]
            for news in waits:
                news.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def stop_claiming(self) -> None:
        """Stop claiming messages; no claim is under way when this returns. On a cluster, wait for
        the end of the waits, at most WAIT_SECONDS."""
        self._claims_nothing = True
        for waiter in self._waiters():
            # Unblock the wait, and do not cancel it: a cancelled wait may have claimed a message
            # that this node does not know.
            with suppress(RedisError):
                await self._redis.client_unblock(waiter.connection)
        await self._under_way.drain()

    async def close(self) -> None:
        """Close the connections."""
        for waiter in self._waiters():
            await waiter.redis.aclose()
        await self._redis.aclose()

    def _waiters(self) -> list[_Waiter]:
        return [one.waiter for one in self._readings.values() if one.waiter is not None]

    async def _repeat(
        self, part: str, work: Callable[[], Coroutine[Any, Any, None]], every: float
    ) -> None:
        """Repeat the work, with `every` seconds between, and wait while Redis is unavailable or the
        queue is damaged, which stops no other queue. `part`: its name."""
        cancelled = Cancelled()
        while True:
            cancelled.check()
            try:
                await work()
                self._outage.worked(part)
                if every:
                    await self._clock.sleep(every)
            except (StoreUnavailable, QueueDamaged) as error:
                await self._clock.sleep(self._outage.failed(part, error))

    async def _claim(self, what: str, redis: Any, queue: str, steps: Steps[T]) -> T:
        with self._under_way.track(what):
            try:
                return await run_async(redis, queue, steps)
            except StoreUnavailable:
                self._readings[queue].has_lost_response = True
                raise

    async def _read(self, queue: str) -> None:
        reading = self._readings[queue]
        has_room, lanes = reading.has_room, reading.lanes
        has_room.clear()
        if self._claims_nothing or all(self._room(queue, priority) <= 0 for priority in PRIORITIES):
            await has_room.wait()
            return
        if reading.has_lost_response:
            await self._recover(queue, reading)
        room = partial(self._space, queue)
        found, empty = await self._claim(
            queue, self._redis, queue, lanes.read_once(GROUP, self._name, room)
        )
        if not found and empty.is_whole and not self._claims_nothing:
            found = await self._wait(queue, reading, empty)
        elif not found:
            await self._wait_for_room(queue, reading, empty)
        if found:
            self._on_deliveries(queue, found)
            for _ in range(_LOOP_PASSES):
                await asyncio.sleep(0)

    async def _recover(self, queue: str, reading: _QueueReading) -> None:
        """Receive the messages that this node has claimed in Redis but does not know, because a
        response was lost. Otherwise these messages would wait until another node reclaims them."""
        reading.has_lost_response = False
        lanes, by_lane = reading.lanes, self.claims.by_lane()
        for priority in await self.do(queue, lanes.known()):
            known = by_lane.get(PriorityLane(queue, priority), [])
            steps = lanes.at(priority).held(GROUP, self._name, known)
            if found := await self._claim(queue, self._redis, queue, steps):
                self._on_deliveries(queue, [Delivery(priority, message) for message in found])

    async def _wait(self, queue: str, reading: _QueueReading, empty: EmptyScan) -> list[Delivery]:
        wait = reading.lanes.wait(GROUP, self._name, empty)
        if is_cluster(self._redis):
            # The client finds the server and the connection, so no other client can unblock it.
            return await self._claim(queue, self._redis, queue, wait)
        waiter = reading.waiter
        if waiter is None:
            redis: Any = self._endpoint.server.client_async(single_connection_client=True)
            waiter = reading.waiter = _Waiter(redis)
        if waiter.connection == 0:
            with translated_errors(waiter.redis, queue):
                waiter.connection = await waiter.redis.client_id()
            if self._claims_nothing:
                return []
        try:
            return await self._claim(queue, waiter.redis, queue, wait)
        except StoreUnavailable:
            waiter.connection = 0  # the next connection has another number
            raise

    async def _wait_for_room(self, queue: str, reading: _QueueReading, empty: EmptyScan) -> None:
        """Wait until a message is written, or until there is room for waiting messages.

        If there is room first, the wait for a new message continues, and the next call uses it
        again, because ending the blocking read would cost its connection."""
        news = reading.news
        if news is None:
            news = reading.news = asyncio.create_task(self.do(queue, waiting(empty.wait)))
        room = asyncio.create_task(reading.has_room.wait())
        try:
            await asyncio.wait([news, room], return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()
        if news.done():
            reading.news = None
            news.result()

    def _space(self, queue: str, priority: int) -> int:
        return min(MOST_READ, self._room(queue, priority))

    async def _extend(self) -> None:
        for lane, ids in self.claims.by_lane().items():
            steps = self.lanes(lane.queue).at(lane.priority)
            held = await self.do(lane.queue, steps.extend(GROUP, self._name, ids))
            if len(held) < len(ids):
                self.claims.drop(lane, set(ids).difference(held))

    async def _reclaim(self) -> None:
        for queue, reading in list(self._readings.items()):
            for priority in await self.do(queue, reading.lanes.known()):
                if (room := self._space(queue, priority)) > 0 and not self._claims_nothing:
                    await self._reclaim_at(queue, priority, room)

    async def _reclaim_at(self, queue: str, priority: int, room: int) -> None:
        steps = (
            self.lanes(queue).at(priority).reclaim(GROUP, self._name, self._endpoint.reclaim, room)
        )
        if found := await self._claim(f"reclaim {queue}", self._redis, queue, steps):
            self._on_deliveries(queue, [Delivery(priority, message) for message in found])

    async def _end(self) -> None:
        await self._has_done.wait()
        self._has_done.clear()
        done, self._done = self._done, []
        try:
            for lane, ids in by_lane(done).items():
                await self.do(lane.queue, self.lanes(lane.queue).at(lane.priority).ack(GROUP, ids))
        except StoreUnavailable:
            self._done += done  # a second acknowledgement is harmless
            self._has_done.set()
            raise
