"""What a node reads from its queues on Redis, and holds until it is done with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fairlead.backends.redis.sharded.claims import Claims, Lane, LaneClaim, by_lane
from fairlead.backends.redis.sharded.connecting import MOST_CONNECTIONS
from fairlead.backends.redis.sharded.endpoint import GROUP, Endpoint
from fairlead.backends.redis.sharded.lanes import Delivery, Empty, Lanes
from fairlead.backends.redis.sharded.message import Finish
from fairlead.backends.redis.sharded.redis_errors import telling
from fairlead.backends.redis.sharded.running import Cancelled, run_async
from fairlead.backends.redis.sharded.steps import Steps, waiting
from fairlead.clock import Clock
from fairlead.errors import StoreUnavailable

T = TypeVar("T")

log = logging.getLogger("fairlead.redis")

MOST_READ = 200
"""Messages of one read."""

_TURNS = 3
"""Of the event loop, before the next read: what has come is taken in, dispatched and begun
first."""

_PAUSE_AFTER_TROUBLE = 1.0  # seconds

PRIORITIES = range(10)


@dataclass
class _Waiter:
    """A connection that waits for one queue."""

    redis: Any
    connection: int = 0
    """Its number at the server."""


@dataclass
class _Reading:
    """One queue as this node reads it."""

    lanes: Lanes
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    waiter: _Waiter | None = None
    news: asyncio.Task[bool] | None = None
    """A wait for news that is under way."""
    is_doubted: bool = False
    """Something may have been claimed by a read whose answer was lost."""


class _UnderWay:
    """Looks that may claim something any moment."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._ended = asyncio.Event()

    @contextmanager
    def look(self, name: str) -> Iterator[None]:
        """Note a look, until the end of the block."""
        self._names.add(name)
        try:
            yield
        finally:
            self._names.discard(name)
            self._ended.set()

    async def drain(self) -> None:
        """Wait until none is under way."""
        while self._names:
            self._ended.clear()
            await self._ended.wait()


class Consumer:
    """Reads while there is room, extends what it holds, and takes over what others have left.

    Whoever uses it runs `run`, which returns when it is cancelled, and raises what broke it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        max_deliveries: int,
        received: Callable[[str, Sequence[Delivery]], None],
        room: Callable[[str, int], int],
        clock: Clock,
    ) -> None:
        """`name`: of the node. `received`: is told the queue and what was claimed of it. `room`:
        how many more of this queue and priority the node takes now. `max_deliveries`: what was
        handed out so often, and came back each time, goes to the dead letters."""
        self._endpoint = endpoint
        self._name = name
        self._max_deliveries = max_deliveries
        self._received = received
        self._room = room
        self._clock = clock
        self._redis: Any = Redis.from_url(endpoint.url, max_connections=MOST_CONNECTIONS)
        self.claims = Claims()
        self._readings: dict[str, _Reading] = {}
        self._served = asyncio.Event()
        self._done: list[LaneClaim] = []
        self._has_done = asyncio.Event()
        self._is_parted = False
        self._under_way = _UnderWay()

    def serve(self, queues: Collection[str]) -> None:
        """From now on it reads these too."""
        for queue in queues:
            if queue not in self._readings:
                lanes = self._endpoint.lanes(queue, self._max_deliveries)
                self._readings[queue] = _Reading(lanes)
        self._served.set()

    @property
    def queues(self) -> list[str]:
        """Those that it reads."""
        return list(self._readings)

    def look(self) -> None:
        """There may be room again."""
        for reading in self._readings.values():
            reading.has_room.set()

    def done(self, task_ids: Iterable[str]) -> None:
        """These tasks need no message any more."""
        before = len(self._done)
        for task_id in task_ids:
            self._done += self.claims.pop(task_id)
        if len(self._done) > before:
            self._has_done.set()

    async def finish(self, finishes: Mapping[Lane, Sequence[Finish]]) -> list[str]:
        """End claims in their own ways; answers the ids of the messages that were not ours any
        more. Raises StoreUnavailable: then some may have been ended."""
        refused: list[str] = []
        for lane, of_lane in finishes.items():
            steps = self.lanes(lane.queue).at(lane.priority)
            answers = await self.do(lane.queue, steps.finish(GROUP, self._name, of_lane))
            refused += [
                finish.id for finish, is_ours in zip(of_lane, answers, strict=True) if not is_ours
            ]
        return refused

    def lanes(self, queue: str) -> Lanes:
        """The lanes of a queue."""
        if (reading := self._readings.get(queue)) is not None:
            return reading.lanes
        return self._endpoint.lanes(queue, self._max_deliveries)

    async def do(self, queue: str, steps: Steps[Any]) -> Any:
        """What the steps answer. Raises StoreUnavailable."""
        return await run_async(self._redis, queue, steps)

    async def run(self) -> None:
        """For as long as the node lives."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._patiently(self._extend, self._endpoint.reclaim / 6))
                parts.create_task(self._patiently(self._reclaim, self._endpoint.reclaim / 3))
                parts.create_task(self._patiently(self._end, 0.0))
                reading: set[str] = set()
                while True:
                    self._served.clear()
                    for queue in self._readings.keys() - reading:
                        reading.add(queue)
                        parts.create_task(self._patiently(partial(self._read, queue), 0.0))
                    await self._served.wait()
        finally:
            waits = [one.news for one in self._readings.values() if one.news is not None]
            for news in waits:
                news.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def leave(self) -> None:
        """Claim nothing more, from when this returns."""
        self._is_parted = True
        for waiter in self._waiters():
            # What it would be given while it is cut off, nobody would know of.
            with suppress(RedisError):
                await self._redis.client_unblock(waiter.connection)
        await self._under_way.drain()

    async def close(self) -> None:
        """Let go of the connections."""
        for waiter in self._waiters():
            await waiter.redis.aclose()
        await self._redis.aclose()

    def _waiters(self) -> list[_Waiter]:
        return [one.waiter for one in self._readings.values() if one.waiter is not None]

    async def _patiently(self, work: Callable[[], Coroutine[Any, Any, None]], every: float) -> None:
        """Again and again, also while Redis is away."""
        trouble = ""
        cancelled = Cancelled()
        while True:
            cancelled.obey()
            try:
                await work()
                trouble = ""
                if every:
                    await self._clock.sleep(every)
            except StoreUnavailable as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning(
                        "waiting for Redis",
                        extra={"redis": self._endpoint.location, "error": trouble},
                    )
                await self._clock.sleep(_PAUSE_AFTER_TROUBLE)

    async def _claim(self, what: str, redis: Any, queue: str, steps: Steps[T]) -> T:
        with self._under_way.look(what):
            try:
                return await run_async(redis, queue, steps)
            except StoreUnavailable:
                self._readings[queue].is_doubted = True
                raise

    async def _read(self, queue: str) -> None:
        reading = self._readings[queue]
        has_room, lanes = reading.has_room, reading.lanes
        has_room.clear()
        if self._is_parted or all(self._room(queue, priority) <= 0 for priority in PRIORITIES):
            await has_room.wait()
            return
        if reading.is_doubted:
            await self._recover(queue, reading)
        room = partial(self._space, queue)
        found, empty = await self._claim(
            queue, self._redis, queue, lanes.look(GROUP, self._name, room)
        )
        if not found and empty.is_whole and not self._is_parted:
            found = await self._wait(queue, reading, empty)
        elif not found:
            await self._wait_for_room(queue, reading, empty)
        if found:
            self._received(queue, found)
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    async def _recover(self, queue: str, reading: _Reading) -> None:
        """What is this node's, and nobody here knows of: otherwise it would wait until it is
        reclaimed."""
        reading.is_doubted = False
        lanes, by_lane = reading.lanes, self.claims.by_lane()
        for priority in await self.do(queue, lanes.known()):
            known = by_lane.get(Lane(queue, priority), [])
            steps = lanes.at(priority).held(GROUP, self._name, known)
            if found := await self._claim(queue, self._redis, queue, steps):
                self._received(queue, [Delivery(priority, message) for message in found])

    async def _wait(self, queue: str, reading: _Reading, empty: Empty) -> list[Delivery]:
        waiter = reading.waiter
        if waiter is None:
            redis: Any = Redis.from_url(self._endpoint.url, single_connection_client=True)
            waiter = reading.waiter = _Waiter(redis)
        if waiter.connection == 0:
            with telling(queue):
                waiter.connection = await waiter.redis.client_id()
            if self._is_parted:
                return []
        try:
            return await self._claim(
                queue, waiter.redis, queue, reading.lanes.wait(GROUP, self._name, empty)
            )
        except StoreUnavailable:
            waiter.connection = 0  # it will be another one
            raise

    async def _wait_for_room(self, queue: str, reading: _Reading, empty: Empty) -> None:
        """Until something is written, or there is room for what is there. Then the wait for news
        goes on, and serves the next pass that finds nothing: to cut it off would cost a connection,
        or the two seconds that it lasts."""
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
                if (room := self._space(queue, priority)) > 0 and not self._is_parted:
                    await self._reclaim_at(queue, priority, room)

    async def _reclaim_at(self, queue: str, priority: int, room: int) -> None:
        steps = (
            self.lanes(queue).at(priority).reclaim(GROUP, self._name, self._endpoint.reclaim, room)
        )
        if found := await self._claim(f"reclaim {queue}", self._redis, queue, steps):
            self._received(queue, [Delivery(priority, message) for message in found])

    async def _end(self) -> None:
        await self._has_done.wait()
        self._has_done.clear()
        done, self._done = self._done, []
        try:
            for lane, ids in by_lane(done).items():
                await self.do(lane.queue, self.lanes(lane.queue).at(lane.priority).ack(GROUP, ids))
        except StoreUnavailable:
            self._done += done  # to acknowledge twice harms nobody
            self._has_done.set()
            raise
