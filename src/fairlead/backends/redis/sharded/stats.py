"""What is in a sharded queue at one moment."""

from __future__ import annotations

import msgspec


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """Counts of messages, all of the same moment."""

    streams: int
    """How many streams readers look at, the default one apart."""
    messages: int
    """All that have not been acknowledged by every group, or deleted: what waits and what is
    claimed."""
    pending: int
    """Claimed by the group."""
    waiting: int
    """Not yet delivered to the group. Exact for a queue with one group; with more of them Redis'
    own count, which may be too great after deletions."""
    dead: int
    cordoned: int
    later: int = 0
    """Written for a time that has not come; not among the messages."""
    oldest: float | None = None
    """Seconds since 1970 at which the oldest that waits was written; None if nothing waits."""
