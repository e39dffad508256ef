"""Groups, consumers, streams and shard keys of a sharded queue, the heaviest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

MOST_DETAILS = 200
"""Greatest length of each list."""


class ConsumerLoad(msgspec.Struct, frozen=True):
    """A consumer of a group."""

    name: str
    messages: int
    """Messages that it has claimed and not acknowledged."""
    last_read: float | None
    """Time of its last read, in seconds since 1970; None for one that is silent for long."""


class StreamLoad(msgspec.Struct, frozen=True):
    """A stream that has messages."""

    stream: str
    messages: int
    """Messages in the stream, waiting or claimed."""


class ShardKeyLoad(msgspec.Struct, frozen=True):
    """A shard key with messages that wait, where readers read by tenants."""

    shard_key: str
    messages: int
    """Messages that the group has not read. Messages that no read has indexed yet do not count."""
    weight: float | None
    """Weight set by `set_weight`; None if the weights of the messages hold."""


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Lists with the heaviest first, taken at one moment, and how many there are of each."""

    is_whole: bool
    """False if there are so many consumers or shard keys that only a part was looked at."""
    groups: list[str]
    group_count: int
    consumers: list[ConsumerLoad]
    consumer_count: int
    streams: list[StreamLoad]
    stream_count: int
    """Number of streams that have messages."""
    shard_keys: list[ShardKeyLoad]
    shard_key_count: int


def details_of(found: Sequence[Any]) -> Details:
    """Return the details that details.lua has returned."""
    is_whole, group_count, groups, consumer_count, consumers, stream_count, streams, *rest = found
    shard_key_count, shard_keys = rest
    return Details(
        is_whole=bool(is_whole),
        groups=[_text(name) for name, _ in groups],
        group_count=group_count,
        consumers=[
            ConsumerLoad(_text(name), held, float(at) / 1000 if at else None)
            for name, held, at in consumers
        ],
        consumer_count=consumer_count,
        streams=[StreamLoad(_text(stream), messages) for stream, messages in streams],
        stream_count=stream_count,
        shard_keys=[
            ShardKeyLoad(_text(key), messages, float(weight) if weight else None)
            for key, messages, weight in shard_keys
        ],
        shard_key_count=shard_key_count,
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
