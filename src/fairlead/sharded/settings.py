"""The settings of a sharded queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairlead.core.sharding.shards import shard
from fairlead.errors import ConfigurationError
from fairlead.sharded.errors import InvalidMessage

Reads = Literal["streams", "tenants"]


@dataclass(frozen=True)
class ShardedSettings:
    """Settings of one queue. Times are seconds, with millisecond precision. Raise
    ConfigurationError if a value is out of range."""

    name: str
    reads: Reads
    streams: int
    streams_per_shard: int
    ttl: float
    shrink_after: float
    max_deliveries: int

    def __post_init__(self) -> None:
        if not self.name or set(self.name) & set("{}"):
            raise ConfigurationError(
                f"queue {self.name!r}: give it a name without braces, which Redis reads as a"
                " hash tag"
            )
        if self.reads not in ("streams", "tenants"):
            raise ConfigurationError(f"reads={self.reads!r}: use 'streams' or 'tenants'")
        if self.ttl < 1 or self.shrink_after < 0 or self.max_deliveries < 1:
            raise ConfigurationError(
                "ttl: 1 s or more; shrink_after: 0 s or more; max_deliveries: 1 or more"
            )
        try:
            shard("", self.streams, self.streams_per_shard)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error

    @property
    def prefix(self) -> str:
        """The beginning of the queue's keys."""
        return f"{{{self.name}}}:"

    @property
    def meta(self) -> str:
        """The key from which the scripts derive all others."""
        return f"{self.prefix}meta"

    def shard(
        self, key: str, streams: int | None, per_shard: int | None
    ) -> tuple[int, tuple[int, ...]]:
        """Return the wanted number of streams, and the streams of the shard key. Raise
        InvalidMessage if the numbers are out of range."""
        count = self.streams if streams is None else streams
        try:
            return count, shard(
                key, count, self.streams_per_shard if per_shard is None else per_shard
            )
        except ValueError as error:
            raise InvalidMessage(str(error)) from error
