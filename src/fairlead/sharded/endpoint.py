"""The Redis server of an application, as its URL describes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fairlead.errors import ConfigurationError
from fairlead.sharded.lanes import Lanes
from fairlead.sharded.redis_url import RedisUrl
from fairlead.sharded.settings import ShardedSettings

T = TypeVar("T", int, float)

GROUP = "workers"

_OPTIONS = {"streams", "per_shard", "reads", "prefix", "reclaim", "unique", "ttl"}
_TTL = 30 * 86_400.0


@dataclass(frozen=True)
class RedisEndpoint:
    """A Redis server, and how the queues of an application are stored there."""

    server: RedisUrl
    """The server, or the servers behind Sentinel or of a cluster."""
    prefix: str = "fairlead"
    streams: int = 64
    per_shard: int = 6
    reads: str = "tenants"
    reclaim: float = 30.0
    """Seconds without an extended claim after which other nodes reclaim the messages of a node."""
    unique: float = 86_400.0
    """Seconds for which a unique key holds, from the submit on. Used only if Redis is the task
    store."""
    ttl: float = _TTL
    """Seconds without a write or read after which an empty queue expires."""

    @property
    def location(self) -> str:
        """The URL for people, without secrets."""
        return self.server.location

    @classmethod
    def of(cls, url: str) -> RedisEndpoint:
        """Parse a URL. Raise ConfigurationError, without the password in its text, if it is no
        usable URL of Redis."""
        server = RedisUrl.of(url, _OPTIONS)
        own, location = server.own, server.location

        def number(option: str, kind: Callable[[str], T], default: T) -> T:
            try:
                return kind(own[option]) if option in own else default
            except ValueError as error:
                raise ConfigurationError(
                    f"{location}: {option}={own[option]!r} is not a valid number"
                ) from error

        found = cls(
            server,
            own.get("prefix", cls.prefix),
            number("streams", int, cls.streams),
            number("per_shard", int, cls.per_shard),
            own.get("reads", cls.reads),
            number("reclaim", float, cls.reclaim),
            number("unique", float, cls.unique),
            number("ttl", float, cls.ttl),
        )
        if found.reclaim < 1 or found.unique < 0:
            raise ConfigurationError(f"{location}: reclaim is 1 s or more, unique 0 s or more")
        found.settings("queue", 1)
        return found

    def settings(self, queue: str, max_deliveries: int) -> ShardedSettings:
        """Return the settings of one queue. Raise ConfigurationError if the options are out of
        range."""
        return ShardedSettings(
            f"{self.prefix}:{queue}",
            self.reads,  # type: ignore[arg-type]
            self.streams,
            self.per_shard,
            self.ttl,
            10.0,
            max_deliveries,
        )

    def lanes(self, queue: str, max_deliveries: int) -> Lanes:
        """Return the lanes of one queue. Raise ConfigurationError if the options are out of
        range."""
        return Lanes(self.settings(queue, max_deliveries), time.monotonic)
