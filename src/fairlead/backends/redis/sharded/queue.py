"""The shuffle-sharded queue on Redis streams: each tenant writes to a few of many streams, readers
go round all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Self, TypeVar

from redis.asyncio import Redis

from fairlead.backends.redis.sharded.connecting import Connected
from fairlead.backends.redis.sharded.message import Message, NewMessage, SetAside, Value
from fairlead.backends.redis.sharded.running import run_async
from fairlead.backends.redis.sharded.stats import Stats
from fairlead.backends.redis.sharded.steps import Steps

T = TypeVar("T")


class ShardedQueue(Connected):
    """A queue that stands on its own, for any number of processes. Needs Redis 7, or Valkey; also
    Redis Cluster.

    `SyncShardedQueue` is the same for synchronous code. Every method raises StoreUnavailable while
    Redis is away, ConfigurationError if it lets us not in, and QueueDamaged if a key of the queue
    holds something else.

    At least once: a message whose consumer dies is delivered again by `reclaim`; a write whose
    answer was lost may have been done, and redis-py tries it again by itself, so a message may be
    there twice. What is not acknowledged lasts as long as anybody writes or reads, and `ttl`
    seconds longer. Source: the queue that Replicate has published, with the faults that
    docs/explanation/sharded.md lists cured.
    """

    _client = Redis

    # Eight parameters on purpose: they are the message and where it goes, spelt out for the user.
    async def write(
        self,
        values: Mapping[str, Value],
        *,
        shard_key: str = "",
        streams: int | None = None,
        streams_per_shard: int | None = None,
        deadline: datetime | None = None,
        weight: float = 1.0,
        at: datetime | None = None,
        context: Mapping[str, str] | None = None,
    ) -> str:
        """Put a message into the shortest stream of its shard and wake who waits; its id.

        `shard_key`: the tenant, whose streams `fairlead.core.sharding.shards` chooses. `deadline`:
        an aware datetime after which nobody gets the message any more. `weight`: the key's share
        (0.001 to 1000) where readers read by tenants. `at`: an aware datetime before which nobody
        gets it, by the server's clock; its id is then good for `delete` only. `context`: for its
        readers (`Message.context`). More streams than there were are there at once, fewer when
        those beyond are empty. Raises InvalidMessage.
        """
        return await self._do(
            self._steps.write(
                NewMessage(values, shard_key, deadline, weight, at, context),
                streams,
                streams_per_shard,
            )
        )

    async def write_many(
        self,
        messages: Iterable[NewMessage],
        *,
        streams: int | None = None,
        streams_per_shard: int | None = None,
    ) -> list[str]:
        """Write them in the order given, hundreds in one round trip; their ids. Raises
        InvalidMessage before the first."""
        return await self._do(self._steps.write_many(messages, streams, streams_per_shard))

    async def read(
        self,
        group: str,
        consumer: str,
        *,
        block: float = 0.0,
        prefer_stream: int | str | None = None,
    ) -> Message:
        """Claim one message for the consumer, waiting up to `block` seconds for it. Raises Empty,
        InvalidMessage.

        `prefer_stream`: looked into first, such as that of the message before (`Message.stream`).
        The message is the consumer's until it is acknowledged, or reclaimed by another one. If the
        call is cancelled, a message may have been claimed; `reclaim` finds it.
        """
        return await self._do(self._steps.read(group, consumer, block, prefer_stream))

    async def read_many(
        self, group: str, consumer: str, *, count: int, block: float = 0.0
    ) -> list[Message]:
        """Claim up to `count` messages (500 at most) in the order in which so many reads would; at
        least one. Waits up to `block` seconds for the first, not for more. Raises Empty."""
        return await self._do(self._steps.read_many(group, consumer, count, block))

    async def extend(self, group: str, consumer: str, *ids: str) -> list[str]:
        """The consumer is still at work on these: they count as given to it just now, and are not
        reclaimed. Answers those that are still its own."""
        return await self._do(self._steps.extend(group, consumer, ids))

    async def ack(self, group: str, *ids: str) -> int:
        """The group is through with these messages; how many of them it still held. A message that
        every group of its stream is through with is gone. Raises InvalidMessage."""
        return await self._do(self._steps.ack(group, ids))

    async def delete(self, id: str) -> None:
        """Take a message out of the queue, also one that is claimed. Raises UnknownMessage,
        InvalidMessage."""
        await self._do(self._steps.delete(id))

    async def len(self) -> int:
        """How many messages are in the queue, claimed ones included."""
        return await self._do(self._steps.len())

    async def pending(self, group: str) -> int:
        """How many messages consumers of the group have claimed and not acknowledged."""
        return await self._do(self._steps.pending(group))

    async def stats(self, group: str) -> Stats:
        """Everything that can be counted, at one moment."""
        return await self._do(self._steps.stats(group))

    async def reclaim(
        self, group: str, consumer: str, *, min_idle: float, count: int = 10
    ) -> list[Message]:
        """Claim up to `count` messages that other consumers have held for `min_idle` seconds or
        longer, as they will have died.

        What was handed out `max_deliveries` times goes to the dead letters instead; what is past
        its deadline is cordoned.
        """
        return await self._do(self._steps.reclaim(group, consumer, min_idle, count))

    async def cordon(self, *, window: float | None = None, count: int = 1000) -> list[SetAside]:
        """Set messages aside that nobody has claimed and whose deadline has passed, by less than
        `window` seconds if it is given; those that were. Reading does the same with each that it
        meets: nobody has to call this."""
        return await self._do(self._steps.cordon(window, count))

    async def cordoned(self, *, count: int = 1000) -> list[SetAside]:
        """What was cordoned, oldest first; kept for `ttl` seconds."""
        return await self._do(self._steps.cordoned(count))

    async def dead_letters(self, *, count: int = 1000) -> list[SetAside]:
        """What was handed out too often, oldest first; kept for `ttl` seconds."""
        return await self._do(self._steps.dead_letters(count))

    async def set_weight(self, shard_key: str, weight: float | None) -> None:
        """The key's share from now on, whatever its messages say; None: as they say. Raises
        InvalidMessage."""
        await self._do(self._steps.set_weight(shard_key, weight))

    async def drop_group(self, group: str) -> int:
        """The group will not read any more, so nothing is kept for it; how many messages left the
        queue with it.

        A group takes part from its first read on: what it has not acknowledged stays, however long
        it is away. If no other group is there, what waits goes on waiting. Looks at every
        message."""
        return await self._do(self._steps.drop_group(group))

    async def close(self) -> None:
        """Close the connections, if they are ours."""
        if self._is_ours:
            await self._redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, steps: Steps[T]) -> T:
        return await run_async(self._redis, self._settings.name, steps)
