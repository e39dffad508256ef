"""Helpers for tests of the sharded queue: shard keys for given streams, the synchronous queue behind
asynchronous calls, and time that passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count
from typing import Any

import pytest
from redis import Redis

from fairlead.core.sharding.shards import shard
from fairlead.sharded import Empty, Message, ShardedQueue, SyncShardedQueue
from tests import tiers

SOON = 30.0
"""Timeout of every wait, in seconds."""


@cache
def key_of(streams: int, *wanted: int) -> str:
    """Return a shard key whose shard is exactly these streams, in any order."""
    for n in count():
        if sorted(shard(f"key {n}", streams, len(wanted))) == sorted(wanted):
            return f"key {n}"
    raise AssertionError


class Awaited:
    """A synchronous queue whose calls are awaited in a thread, so that one test covers both queues."""

    def __init__(self, queue: SyncShardedQueue) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(asyncio.to_thread, getattr(self._queue, name))


kinds = pytest.mark.parametrize("kind", tiers.matrix("asynchronous", "synchronous"))
"""Both kinds of queues run the same steps, so `make test` runs a test with one of them."""


def queue_on(url: str, kind: str, name: str = "q", **settings: Any) -> Any:
    """Return a queue of this kind, with methods to await."""
    if kind == "asynchronous":
        return ShardedQueue(url, name, **settings)
    return Awaited(SyncShardedQueue(url, name, **settings))


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def drain(
    queue: SyncShardedQueue, group: str = "g", consumer: str = "c", ack: bool = True
) -> list[Message]:
    """Read all messages, and return them in the order of the reads."""
    found = []
    while True:
        try:
            found.append(queue.read(group, consumer))
        except Empty:
            return found
        if ack:
            queue.ack(group, found[-1].id)


def bury(queue: SyncShardedQueue, group: str, consumer: str, *ids: str) -> None:
    """Make messages that the consumer has claimed dead letters, however often they were delivered."""
    strict = SyncShardedQueue(queue._redis, queue.name, max_deliveries=1)
    assert strict.nack(group, consumer, *ids) == list(ids)


def pass_time(redis: Redis, name: str, millis: int) -> None:
    """Move the expiry of every key of the queue, and the expiries that the queue has stored, `millis`
    (milliseconds) nearer."""
    for key in redis.scan_iter(match=f"{{{name}}}:*"):
        if (left := redis.pttl(key)) >= 0:
            redis.pexpire(key, max(0, left - millis))
    meta = f"{{{name}}}:meta"
    for field in map(bytes.decode, redis.hkeys(meta)):
        if field in ("refreshed", "asked") or field.startswith("looked:"):
            redis.hincrby(meta, field, -millis)


def lives(redis: Redis, key: bytes | str, millis: float) -> bool:
    """Return whether a key exists without a time to live, or for longer than `millis`."""
    left = redis.pttl(key)
    return bool(left == -1 or left > millis)
