"""Counts of a sharded queue at one moment."""

from __future__ import annotations

import msgspec


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """Counts of messages, taken at one moment."""

    streams: int
    """Number of streams that readers check, without the default one."""
    messages: int
    """Messages in the queue, waiting or claimed: not yet deleted, and not yet acknowledged by every
    group."""
    pending: int
    """Messages claimed by the group."""
    waiting: int
    """Messages not yet delivered to the group. Exact for a queue with one group; with more groups
    this is Redis' own count, which may be too great after deletions."""
    dead: int
    cordoned: int
    later: int = 0
    """Messages written for a time that has not come; not included in `messages`."""
    oldest: float | None = None
    """Time at which the oldest waiting message was written, in seconds since 1970; None if nothing
    waits."""
