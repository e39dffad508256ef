"""The sharded queue for synchronous code: the methods of `ShardedQueue`, run by a synchronous
client."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from fairlead.sharded.connecting import Connected
from fairlead.sharded.heartbeat import SyncHeartbeat
from fairlead.sharded.queue import ShardedQueue
from fairlead.sharded.redis_url import RedisUrl
from fairlead.sharded.running import result_of

P = ParamSpec("P")
T = TypeVar("T")


def _sync(
    method: Callable[Concatenate[ShardedQueue, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Connected, P], T]:
    """Return the method for a synchronous client, whose calls have ended when they return."""

    @functools.wraps(method)
    def call(self: Connected, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return result_of(method(cast(ShardedQueue, self), *args, **kwargs))

    return call


class SyncShardedQueue(Connected):
    """The synchronous twin of `ShardedQueue`, method by method, for any number of threads."""

    _connect = RedisUrl.client

    write = _sync(ShardedQueue.write)
    write_many = _sync(ShardedQueue.write_many)
    read = _sync(ShardedQueue.read)
    read_many = _sync(ShardedQueue.read_many)
    extend = _sync(ShardedQueue.extend)
    ack = _sync(ShardedQueue.ack)
    nack = _sync(ShardedQueue.nack)
    delete = _sync(ShardedQueue.delete)
    len = _sync(ShardedQueue.len)
    pending = _sync(ShardedQueue.pending)
    stats = _sync(ShardedQueue.stats)
    details = _sync(ShardedQueue.details)
    reclaim = _sync(ShardedQueue.reclaim)
    cordon = _sync(ShardedQueue.cordon)
    cordoned = _sync(ShardedQueue.cordoned)
    dead_letter_heads = _sync(ShardedQueue.dead_letter_heads)
    dead_letter = _sync(ShardedQueue.dead_letter)
    requeue_dead_letters = _sync(ShardedQueue.requeue_dead_letters)
    delete_dead_letters = _sync(ShardedQueue.delete_dead_letters)
    set_weight = _sync(ShardedQueue.set_weight)
    drop_group = _sync(ShardedQueue.drop_group)

    def heartbeat(self, group: str, consumer: str, *ids: str, every: float) -> SyncHeartbeat:
        """See `ShardedQueue.heartbeat`. A thread extends the claims."""
        return SyncHeartbeat(lambda held: self.extend(group, consumer, *held), ids, every)

    def close(self) -> None:
        """See `ShardedQueue.close`."""
        if self._is_ours:
            self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
