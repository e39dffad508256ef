"""The common part of `ShardedQueue` and `SyncShardedQueue`: settings, and a client of Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from fairlead.errors import ConfigurationError
from fairlead.sharded.confirmation import Confirmation
from fairlead.sharded.dead_letters import DeadLetterSteps
from fairlead.sharded.redis_url import RedisUrl
from fairlead.sharded.running import run
from fairlead.sharded.settings import Reads, ShardedSettings
from fairlead.sharded.steps import QueueSteps, Steps

T = TypeVar("T")

MOST_CONNECTIONS = 10_000
"""Connections of one client. Each reader that waits holds one."""


def refuse_text(settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if the client decodes responses, since such a client cannot return
    bytes."""
    if settings.get("decode_responses"):
        raise ConfigurationError("values are bytes: give a client without decode_responses=True")


class Connected:
    """A queue with its client of Redis."""

    _connect: ClassVar[Callable[..., Any]]
    """The function that makes the client, for a queue that is given a URL."""

    # Eight parameters on purpose: the settings of a queue, spelt out for the user.
    def __init__(
        self,
        redis: Any,
        name: str,
        *,
        reads: Reads = "streams",
        streams: int = 64,
        streams_per_shard: int = 6,
        ttl: float = 86_400.0,
        shrink_after: float = 10.0,
        max_deliveries: int = 5,
    ) -> None:
        """Prepare a queue, without connecting yet.

        `redis`: a URL such as redis://host:6379/0, or a client, which the caller closes. `reads`:
        the order of reading, by "streams" in rotation or by "tenants" (shard keys) in proportion to
        their weights; all readers use the same. `streams`, `streams_per_shard`: defaults of a
        write. `ttl`: seconds without a write or read after which an empty queue expires; if its
        clients give several values, the greatest holds. `shrink_after`: seconds without a request
        for more streams, after which their number may shrink. `max_deliveries`: deliveries after
        which a message goes to the dead letters. Raise ConfigurationError if a setting is out of
        range or the URL is no URL of Redis.
        """
        self._settings = ShardedSettings(
            name, reads, streams, streams_per_shard, ttl, shrink_after, max_deliveries
        )
        self._steps = QueueSteps(self._settings, time.monotonic)
        self._dead_letters = DeadLetterSteps(self._steps)
        self._is_ours = isinstance(redis, str)
        self._confirmation: Confirmation | None = None
        if isinstance(redis, str):
            url = RedisUrl.of(redis)
            self._confirmation = url.confirmation
            redis = type(self)._connect(url, max_connections=MOST_CONNECTIONS)
        else:
            refuse_text(redis.get_connection_kwargs())
        self._redis: Any = redis

    async def _do(self, steps: Steps[T]) -> T:
        """Run the steps, with either kind of client."""
        return await run(self._redis, self._settings.name, steps, self._confirmation)

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._settings.name
