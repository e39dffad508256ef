"""The sharded queue for synchronous code: the same steps, run by a synchronous client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Self, TypeVar

from fairlead.sharded.connecting import Connected, found_letter
from fairlead.sharded.details import Details
from fairlead.sharded.heartbeat import SyncHeartbeat
from fairlead.sharded.message import (
    DeadLetterHead,
    Message,
    NewMessage,
    RemovedMessage,
    Value,
)
from fairlead.sharded.redis_url import RedisUrl
from fairlead.sharded.running import run
from fairlead.sharded.stats import Stats
from fairlead.sharded.steps import Steps

T = TypeVar("T")


class SyncShardedQueue(Connected):
    """The synchronous twin of `ShardedQueue`, method by method, for any number of threads."""

    _connect = RedisUrl.client

    # Eight parameters on purpose: see `ShardedQueue.write`.
    def write(
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
        """See `ShardedQueue.write`."""
        return self._do(
            self._steps.write(
                NewMessage(values, shard_key, deadline, weight, at, context),
                streams,
                streams_per_shard,
            )
        )

    def write_many(
        self,
        messages: Iterable[NewMessage],
        *,
        streams: int | None = None,
        streams_per_shard: int | None = None,
    ) -> list[str]:
        """See `ShardedQueue.write_many`."""
        return self._do(self._steps.write_many(messages, streams, streams_per_shard))

    def read(
        self,
        group: str,
        consumer: str,
        *,
        block: float = 0.0,
        prefer_stream: int | str | None = None,
    ) -> Message:
        """See `ShardedQueue.read`."""
        return self._do(self._steps.read(group, consumer, block, prefer_stream))

    def read_many(
        self, group: str, consumer: str, *, count: int, block: float = 0.0
    ) -> list[Message]:
        """See `ShardedQueue.read_many`."""
        return self._do(self._steps.read_many(group, consumer, count, block))

    def extend(self, group: str, consumer: str, *ids: str) -> list[str]:
        """See `ShardedQueue.extend`."""
        return self._do(self._steps.extend(group, consumer, ids))

    def ack(self, group: str, *ids: str) -> int:
        """See `ShardedQueue.ack`."""
        return self._do(self._steps.ack(group, ids))

    def nack(self, group: str, consumer: str, *ids: str, delay: float = 0.0) -> list[str]:
        """See `ShardedQueue.nack`."""
        return self._do(self._steps.nack(group, consumer, ids, delay))

    def heartbeat(self, group: str, consumer: str, *ids: str, every: float) -> SyncHeartbeat:
        """See `ShardedQueue.heartbeat`. A thread extends the claims."""
        return SyncHeartbeat(lambda held: self.extend(group, consumer, *held), ids, every)

    def delete(self, id: str) -> None:
        """See `ShardedQueue.delete`."""
        self._do(self._steps.delete(id))

    def len(self) -> int:
        """See `ShardedQueue.len`."""
        return self._do(self._steps.len())

    def pending(self, group: str) -> int:
        """See `ShardedQueue.pending`."""
        return self._do(self._steps.pending(group))

    def stats(self, group: str) -> Stats:
        """See `ShardedQueue.stats`."""
        return self._do(self._steps.stats(group))

    def details(self, group: str = "", *, count: int = 20) -> Details:
        """See `ShardedQueue.details`."""
        return self._do(self._steps.details(group, count))

    def reclaim(
        self, group: str, consumer: str, *, min_idle: float, count: int = 10
    ) -> list[Message]:
        """See `ShardedQueue.reclaim`."""
        return self._do(self._steps.reclaim(group, consumer, min_idle, count))

    def cordon(self, *, window: float | None = None, count: int = 1000) -> list[RemovedMessage]:
        """See `ShardedQueue.cordon`."""
        return self._do(self._steps.cordon(window, count))

    def cordoned(self, *, count: int = 1000) -> list[RemovedMessage]:
        """See `ShardedQueue.cordoned`."""
        return self._do(self._steps.cordoned(count))

    def dead_letter_heads(self, *, count: int = 1000, after: str = "") -> list[DeadLetterHead]:
        """See `ShardedQueue.dead_letter_heads`."""
        return self._do(self._dead_letters.heads(count, after))

    def dead_letter(self, id: str) -> RemovedMessage:
        """See `ShardedQueue.dead_letter`."""
        return found_letter(id, self._do(self._dead_letters.find(id)))

    def requeue_dead_letters(self, *ids: str) -> list[str]:
        """See `ShardedQueue.requeue_dead_letters`."""
        return self._do(self._dead_letters.requeue(ids))

    def delete_dead_letters(self, *ids: str) -> list[str]:
        """See `ShardedQueue.delete_dead_letters`."""
        return self._do(self._dead_letters.delete(ids))

    def set_weight(self, shard_key: str, weight: float | None) -> None:
        """See `ShardedQueue.set_weight`."""
        self._do(self._steps.set_weight(shard_key, weight))

    def drop_group(self, group: str) -> int:
        """See `ShardedQueue.drop_group`."""
        return self._do(self._steps.drop_group(group))

    def close(self) -> None:
        """See `ShardedQueue.close`."""
        if self._is_ours:
            self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, steps: Steps[T]) -> T:
        return run(self._redis, self._settings.name, steps, self._confirmation)
