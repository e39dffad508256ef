"""The shuffle-sharded queue on Redis streams: each tenant writes to a few of many streams, and
readers visit all streams in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Self

from fairlead.sharded.connecting import Connected
from fairlead.sharded.details import Details
from fairlead.sharded.errors import UnknownMessage
from fairlead.sharded.heartbeat import Heartbeat
from fairlead.sharded.message import (
    DeadLetterHead,
    Message,
    NewMessage,
    RemovedMessage,
    Value,
)
from fairlead.sharded.redis_url import RedisUrl
from fairlead.sharded.stats import Stats


class ShardedQueue(Connected):
    """A stand-alone queue for any number of processes. It needs Redis 7 or Valkey, also as a
    cluster.

    `SyncShardedQueue` offers the same methods to synchronous code. Every method raises
    StoreUnavailable while Redis is unavailable, ConfigurationError if Redis refuses the login, and
    QueueDamaged if a key of the queue holds foreign data.

    Delivery is at least once: `reclaim` delivers the messages of a dead consumer again, and
    redis-py repeats a write whose response was lost, so a message may be in the queue twice. A
    message that is not acknowledged never expires. The design is that of the queue published by
    Replicate; docs/explanation/sharded.md lists the faults that are cured here.
    """

    _connect = RedisUrl.client_async

    # Eight parameters on purpose: the message and its destination, spelt out for the user.
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
        """Put a message into the shortest stream of its shard, wake the readers that wait, and
        return its id.

        `shard_key`: the tenant; `fairlead.core.sharding.shards` chooses its streams. `deadline`: an
        aware datetime after which no reader gets the message. `weight`: the share of the shard key
        (0.001 to 1000) if readers read by tenants. `at`: an aware datetime, by the server's clock,
        before which no reader gets the message; the returned id is then good for `delete` only.
        `context`: a map for the readers of the message (`Message.context`). A greater number of
        `streams` takes effect at once, a smaller one when the streams beyond it are empty. Raise
        InvalidMessage if the message cannot be written.
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
        """Write messages in the order given, hundreds in one round trip, and return their ids.
        Raise InvalidMessage, before anything is written, if one of the messages is invalid."""
        return await self._do(self._steps.write_many(messages, streams, streams_per_shard))

    async def read(
        self,
        group: str,
        consumer: str,
        *,
        block: float = 0.0,
        prefer_stream: int | str | None = None,
    ) -> Message:
        """Claim one message for the consumer, and wait up to `block` seconds for it. Raise Empty if
        none came, InvalidMessage if `prefer_stream` is no stream.

        `prefer_stream`: the stream to look into first, such as that of the previous message
        (`Message.stream`). The message belongs to the consumer until it is acknowledged, or until
        another consumer reclaims it. A cancelled call may have claimed a message; `reclaim` finds
        it.
        """
        return await self._do(self._steps.read(group, consumer, block, prefer_stream))

    async def read_many(
        self, group: str, consumer: str, *, count: int, block: float = 0.0
    ) -> list[Message]:
        """Claim up to `count` messages (at most 500, and about a megabyte), at least one, in the
        order in which single reads would claim them. Wait up to `block` seconds for the first
        message, not for more. Raise Empty if none came."""
        return await self._do(self._steps.read_many(group, consumer, count, block))

    async def extend(self, group: str, consumer: str, *ids: str) -> list[str]:
        """Restart the idle time of messages that the consumer still works on, so that nobody
        reclaims them. Return the ids that still belong to the consumer."""
        return await self._do(self._steps.extend(group, consumer, ids))

    async def ack(self, group: str, *ids: str) -> int:
        """Acknowledge messages for the group, and return how many of them the group still held. A
        message leaves the queue when every group of its stream has acknowledged it. Raise
        InvalidMessage if an id is malformed."""
        return await self._do(self._steps.ack(group, ids))

    async def nack(self, group: str, consumer: str, *ids: str, delay: float = 0.0) -> list[str]:
        """Give messages back that the consumer could not handle: a reader of the group gets them
        again after `delay` seconds, before other messages. Return the ids that still belonged to
        the consumer.

        The messages keep their ids and counts of deliveries. A message delivered `max_deliveries`
        times goes to the dead letters instead; a message past its deadline is cordoned. Raise
        InvalidMessage if an id is malformed, or the delay is negative or longer than 31 years."""
        return await self._do(self._steps.nack(group, consumer, ids, delay))

    def heartbeat(self, group: str, consumer: str, *ids: str, every: float) -> Heartbeat:
        """Return a context manager that extends the claims of these messages every `every` seconds
        while its block runs, for handlers that work longer than the `min_idle` of the reclaimers;
        a third of it is a good value. `Heartbeat.lost` has the ids that the consumer has lost. An
        outage of Redis does not end the block. Raise ConfigurationError if `every` is not
        positive."""
        return Heartbeat(lambda held: self.extend(group, consumer, *held), ids, every)

    async def delete(self, id: str) -> None:
        """Take a message out of the queue, even if it is claimed. Raise UnknownMessage if it is not
        there, InvalidMessage if the id is malformed."""
        await self._do(self._steps.delete(id))

    async def len(self) -> int:
        """Return the number of messages in the queue, including claimed ones."""
        return await self._do(self._steps.len())

    async def pending(self, group: str) -> int:
        """Return the number of messages that consumers of the group have claimed and not
        acknowledged."""
        return await self._do(self._steps.pending(group))

    async def stats(self, group: str) -> Stats:
        """Return all counts of the queue, taken at one moment."""
        return await self._do(self._steps.stats(group))

    async def details(self, group: str = "", *, count: int = 20) -> Details:
        """Return what fills the queue: its groups, the longest streams, and of this group the
        consumers and, where readers read by tenants, the shard keys; at most `count` (1 to 200) of
        each, the heaviest first. Raise InvalidMessage for another count."""
        return await self._do(self._steps.details(group, count))

    async def reclaim(
        self, group: str, consumer: str, *, min_idle: float, count: int = 10
    ) -> list[Message]:
        """Claim up to `count` messages that other, probably dead, consumers have held for
        `min_idle` seconds or longer.

        A message already delivered `max_deliveries` times goes to the dead letters instead; a
        message past its deadline is cordoned. With very many claims, a call may look at a part of
        them, and the next call goes on there. Raise InvalidMessage if `min_idle` is negative or
        longer than 31 years.
        """
        return await self._do(self._steps.reclaim(group, consumer, min_idle, count))

    async def cordon(
        self, *, window: float | None = None, count: int = 1000
    ) -> list[RemovedMessage]:
        """Move unclaimed messages past their deadline to the cordoned ones, and return them.
        `window`: the greatest time past the deadline in seconds; None means any. Calling this is
        optional, since a read cordons each expired message that it meets. Raise InvalidMessage if
        the window is negative or longer than 31 years."""
        return await self._do(self._steps.cordon(window, count))

    async def cordoned(self, *, count: int = 1000) -> list[RemovedMessage]:
        """Return cordoned messages, oldest first. The queue keeps them for `ttl` seconds of use."""
        return await self._do(self._steps.cordoned(count))

    async def dead_letter_heads(
        self, *, count: int = 1000, after: str = ""
    ) -> list[DeadLetterHead]:
        """Return messages that were delivered too often, oldest first, without their large fields;
        `dead_letter` returns all fields of one. The queue keeps them for `ttl` seconds of use.
        `after`: the position of the last dead letter of the page before
        (`RemovedMessage.position`)."""
        return await self._do(self._dead_letters.heads(count, after))

    async def dead_letter(self, id: str) -> RemovedMessage:
        """Return the dead letter of the message with this id, with all its fields. Raise
        UnknownMessage if there is none."""
        letter = await self._do(self._dead_letters.find(id))
        if letter is None:
            raise UnknownMessage(
                f"no dead letter of message {id}: requeued, deleted, expired, or never there"
            )
        return letter

    async def requeue_dead_letters(self, *ids: str) -> list[str]:
        """Write the messages of dead letters into the queue again, for all groups, with new ids and
        no deliveries yet, and remove the dead letters. Return the ids for which there was a dead
        letter. A message past its deadline is cordoned when it is read."""
        return await self._do(self._dead_letters.requeue(ids))

    async def delete_dead_letters(self, *ids: str) -> list[str]:
        """Remove dead letters for good, by the ids of their messages. Return the ids for which
        there was one."""
        return await self._do(self._dead_letters.delete(ids))

    async def set_weight(self, shard_key: str, weight: float | None) -> None:
        """Set the share of a shard key from now on, whatever its messages say. None restores the
        weights of the messages. Raise InvalidMessage if the weight is out of range."""
        await self._do(self._steps.set_weight(shard_key, weight))

    async def drop_group(self, group: str) -> int:
        """Remove a group that will not read any more, with everything kept for it alone, and return
        how many messages left the queue.

        A group takes part from its first read on: messages that it has not acknowledged stay,
        however long it is unavailable. If no other group exists, waiting messages stay waiting. The
        call looks at every message that the group has not acknowledged, some hundreds at a time; if
        it is interrupted, call it again."""
        return await self._do(self._steps.drop_group(group))

    async def close(self) -> None:
        """Close the connections, if the queue has opened them."""
        if self._is_ours:
            await self._redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
