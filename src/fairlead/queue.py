"""A queue as the application declares it."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core.cluster_limits import AnyLimit
from fairlead.errors import ConfigurationError

MOST_PARTITIONS = 1000
DEFAULT_PARTITIONS = 4


@dataclass(frozen=True)
class Queue:
    """Where tasks wait. Each partition is read by one node at a time: partitions bound how many nodes share the work."""

    name: str
    order: str | None = None
    """"fair": by level, so that no fairness key delays another; "fifo": by arrival. None: "fair", or as the channel has it
    where that brings tasks in an order of its own (Redis)."""
    partitions: int = DEFAULT_PARTITIONS
    concurrency: AnyLimit | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > 200 or "\x00" in self.name:
            raise ConfigurationError(f"queue name {self.name!r}: use 1 to 200 bytes of text")
        if self.order not in (None, "fair", "fifo"):
            raise ConfigurationError(f"queue {self.name!r}: order {self.order!r} is unknown; use 'fair' or 'fifo'")
        if not 1 <= self.partitions <= MOST_PARTITIONS:
            raise ConfigurationError(
                f"queue {self.name!r}: partitions must be 1 to {MOST_PARTITIONS}, not {self.partitions}"
            )
