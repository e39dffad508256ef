"""What a node reads from its queues on Redis, and holds until it is done with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fairlead.backends.redis.sharded.claims import Claim, Claims, Lane, by_lane
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
        self._lanes: dict[str, Lanes] = {}
        self._has_room: dict[str, asyncio.Event] = {}
        self._served = asyncio.Event()
        self._done: list[Claim] = []
        self._has_done = asyncio.Event()
        self._is_parted = False
        self._looking: set[str] = set()
        """What may claim something any moment."""
        self._looked = asyncio.Event()
        self._waiters: dict[str, _Waiter] = {}
        self._doubted: set[str] = set()
        """Queues of which something may have been claimed by a read whose answer was lost."""
        self._news: dict[str, asyncio.Task[bool]] = {}
        """Waits for news that are under way, by queue."""

    def serve(self, queues: Collection[str]) -> None:
        """From now on it reads these too."""
        for queue in queues:
            if queue not in self._lanes:
                self._lanes[queue] = self._endpoint.lanes(queue, self._max_deliveries)
                self._has_room[queue] = asyncio.Event()
        self._served.set()

    @property
    def queues(self) -> list[str]:
        """Those that it reads."""
        return list(self._lanes)

    def look(self) -> None:
        """There may be room again."""
        for event in self._has_room.values():
            event.set()

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
        return self._lanes.get(queue) or self._endpoint.lanes(queue, self._max_deliveries)

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
                    for queue in self._lanes.keys() - reading:
                        reading.add(queue)
                        parts.create_task(self._patiently(partial(self._read, queue), 0.0))
                    await self._served.wait()
        finally:
            for news in self._news.values():
                news.cancel()
            await asyncio.gather(*self._news.values(), return_exceptions=True)

    async def part(self) -> None:
        """Claim nothing more, from when this returns."""
        self._is_parted = True
        for waiter in self._waiters.values():
            # What it would be given while it is cut off, nobody would know of.
            with suppress(RedisError):
                await self._redis.client_unblock(waiter.connection)
        while self._looking:
            self._looked.clear()
            await self._looked.wait()

    async def close(self) -> None:
        """Let go of the connections."""
        for waiter in self._waiters.values():
            await waiter.redis.aclose()
        await self._redis.aclose()

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
        self._looking.add(what)
        try:
            return await run_async(redis, queue, steps)
        except StoreUnavailable:
            self._doubted.add(queue)
            raise
        finally:
            self._looking.discard(what)
            self._looked.set()

    async def _read(self, queue: str) -> None:
        has_room, lanes = self._has_room[queue], self._lanes[queue]
        has_room.clear()
        if self._is_parted or all(self._room(queue, priority) <= 0 for priority in PRIORITIES):
            await has_room.wait()
            return
        if queue in self._doubted:
            await self._recover(queue, lanes)
        room = partial(self._space, queue)
        found, empty = await self._claim(
            queue, self._redis, queue, lanes.look(GROUP, self._name, room)
        )
        if not found and empty.is_whole and not self._is_parted:
            found = await self._wait(queue, lanes, empty)
        elif not found:
            await self._wait_for_room(queue, empty)
        if found:
            self._received(queue, found)
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    async def _recover(self, queue: str, lanes: Lanes) -> None:
        """What is this node's, and nobody here knows of: otherwise it would wait until it is
        reclaimed."""
        self._doubted.discard(queue)
        by_lane = self.claims.by_lane()
        for priority in await self.do(queue, lanes.known()):
            known = by_lane.get(Lane(queue, priority), [])
            steps = lanes.at(priority).held(GROUP, self._name, known)
            if found := await self._claim(queue, self._redis, queue, steps):
                self._received(queue, [Delivery(priority, message) for message in found])

    async def _wait(self, queue: str, lanes: Lanes, empty: Empty) -> list[Delivery]:
        waiter = self._waiters.get(queue)
        if waiter is None:
            redis: Any = Redis.from_url(self._endpoint.url, single_connection_client=True)
            waiter = self._waiters[queue] = _Waiter(redis)
        if waiter.connection == 0:
            with telling(queue):
                waiter.connection = await waiter.redis.client_id()
            if self._is_parted:
                return []
        try:
            return await self._claim(
                queue, waiter.redis, queue, lanes.wait(GROUP, self._name, empty)
            )
        except StoreUnavailable:
            waiter.connection = 0  # it will be another one
            raise

    async def _wait_for_room(self, queue: str, empty: Empty) -> None:
        """Until something is written, or there is room for what is there. Then the wait for news
        goes on, and serves the next pass that finds nothing: to cut it off would cost a connection,
        or the two seconds that it lasts."""
        news = self._news.get(queue)
        if news is None:
            news = self._news[queue] = asyncio.create_task(self.do(queue, waiting(empty.wait)))
        room = asyncio.create_task(self._has_room[queue].wait())
        try:
            await asyncio.wait([news, room], return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()
        if news.done():
            del self._news[queue]
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
        for queue, lanes in list(self._lanes.items()):
            for priority in await self.do(queue, lanes.known()):
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
