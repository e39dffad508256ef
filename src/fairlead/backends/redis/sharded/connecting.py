"""What both queues begin with: their settings, and a client of Redis that may be theirs to
close."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fairlead.backends.redis.sharded.settings import Reads, Settings
from fairlead.backends.redis.sharded.steps import QueueSteps
from fairlead.errors import ConfigurationError

MOST_CONNECTIONS = 10_000
"""A reader that waits holds a connection."""

KNOWN = "redis://[user:password@]host[:6379][/0], rediss:// or unix://"


def check_url(url: str) -> None:
    """Raises ConfigurationError, without the password in its text."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(f"no URL of Redis: use {KNOWN}")


def refuse_text(settings: Mapping[str, Any]) -> None:
    """A client that decodes its answers cannot give bytes. Raises ConfigurationError."""
    if settings.get("decode_responses"):
        raise ConfigurationError("values are bytes: give a client without decode_responses=True")


class Connected:
    """A queue, and the way to it."""

    _client: ClassVar[Any]
    """The class of the clients it makes."""

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
        """`redis`: a URL such as redis://host:6379/0, or a client that stays yours to close.
        Connects to nothing yet.

        `reads`: who is next, "streams" by turns or "tenants" (shard keys) by their shares; all
        readers say the same. `streams`, `streams_per_shard`: what a write uses unless it says
        otherwise. `ttl`: seconds; of several, the greatest holds. `shrink_after`: seconds for which
        nobody may have asked for more streams before there are fewer. `max_deliveries`: a message
        that was handed out so often goes to the dead letters. Raises ConfigurationError.
        """
        self._settings = Settings(
            name, reads, streams, streams_per_shard, ttl, shrink_after, max_deliveries
        )
        self._steps = QueueSteps(self._settings, time.monotonic)
        self._is_ours = isinstance(redis, str)
        if isinstance(redis, str):
            check_url(redis)
            redis = self._client.from_url(redis, max_connections=MOST_CONNECTIONS)
        else:
            refuse_text(redis.get_connection_kwargs())
        self._redis: Any = redis
