"""Where queues of tasks live in a Redis: what a URL says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fairlead.errors import ConfigurationError
from fairlead.sharded.connecting import KNOWN, check_url
from fairlead.sharded.lanes import Lanes
from fairlead.sharded.settings import Settings

GROUP = "workers"

_OPTIONS = {"streams", "per_shard", "reads", "prefix", "reclaim", "unique", "ttl"}
_TTL = 30 * 86_400.0


@dataclass(frozen=True)
class Place:
    """A Redis, and how the queues of an application are kept there."""

    url: str
    """For redis-py: what is Fairlead's own is taken out."""
    location: str
    """For people, without secrets."""
    prefix: str = "fairlead"
    streams: int = 64
    per_shard: int = 6
    reads: str = "tenants"
    reclaim: float = 30.0
    """Seconds after which what a node holds is another one's, if it was not heard of."""
    unique: float = 86_400.0
    """Seconds for which a unique key holds, from the submit on; only where Redis is the task store."""
    ttl: float = _TTL
    """Seconds after which a queue that nobody writes to or reads is forgotten, with all that is in it."""

    @classmethod
    def of(cls, url: str) -> Place:
        """Raises ConfigurationError, without the password in its text."""
        check_url(url)
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True)
        own = {name: value for name, value in given if name in _OPTIONS}
        rest = urlencode([(name, value) for name, value in given if name not in _OPTIONS])
        path = parts.path if parts.scheme == "unix" else parts.path.rstrip("/")
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        location = f"{parts.scheme}://{host}{port}{path}"
        try:
            found = cls(
                urlunsplit(parts._replace(path=path, query=rest)),
                location,
                own.get("prefix", cls.prefix),
                int(own.get("streams", cls.streams)),
                int(own.get("per_shard", cls.per_shard)),
                own.get("reads", cls.reads),
                float(own.get("reclaim", cls.reclaim)),
                float(own.get("unique", cls.unique)),
                float(own.get("ttl", cls.ttl)),
            )
        except ValueError as error:
            raise ConfigurationError(f"{location}: {error}; use {KNOWN}?streams=64&per_shard=6") from error
        if found.reclaim < 1 or found.unique < 0:
            raise ConfigurationError(f"{location}: reclaim is 1 s or more, unique 0 s or more")
        found.settings("queue", 1)
        return found

    def settings(self, queue: str, max_deliveries: int) -> Settings:
        """Of one queue. Raises ConfigurationError."""
        return Settings(
            f"{self.prefix}:{queue}", self.reads, self.streams, self.per_shard, self.ttl, 10.0, max_deliveries  # type: ignore[arg-type]
        )  # fmt: skip

    def lanes(self, queue: str, max_deliveries: int) -> Lanes:
        """One queue. Raises ConfigurationError."""
        return Lanes(self.settings(queue, max_deliveries), time.monotonic)
