"""A queue as the application declares it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.core.limits.cluster_limits import AnyLimit
from fairlead.errors import ConfigurationError

MOST_PARTITIONS = 1000
DEFAULT_PARTITIONS = 4
ORDERED_PARTITIONS = 120
"""Of an ordered queue: fixed for good, so there are enough for any number of nodes."""


@dataclass(frozen=True)
class Queue:
    """Where tasks wait. Each partition is read by one node at a time: partitions bound how many
    nodes share the work."""

    name: str
    order: str | None = None
    """"fair": by level, so that no fairness key delays another; "fifo": by arrival. None: "fair",
    or as the channel has it where that brings tasks in an order of its own (Redis)."""
    partitions: int = DEFAULT_PARTITIONS
    concurrency: AnyLimit | None = None
    kind: str = "tasks"
    """"ordered": its tasks go through a log into a schedule, and run one at a time for each
    ordering key."""
    grace: float = 10.0
    """Of an ordered queue: seconds that a task may be late when it is submitted."""
    look_ahead: float = 300.0
    """Of an ordered queue: seconds before its time that a task is brought into memory."""
    cost: str = "tasks"
    """What fairness keys have equal shares of: "tasks", each counts the same; "runtime", the time
    that their runs take."""

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > 200 or "\x00" in self.name:
            raise ConfigurationError(f"queue name {self.name!r}: use 1 to 200 bytes of text")
        if self.order not in (None, "fair", "fifo"):
            raise ConfigurationError(
                f"queue {self.name!r}: order {self.order!r} is unknown; use 'fair' or 'fifo'"
            )
        if self.kind not in ("tasks", "ordered"):
            raise ConfigurationError(
                f"queue {self.name!r}: kind {self.kind!r} is unknown; use 'tasks' or 'ordered'"
            )
        if self.cost not in ("tasks", "runtime"):
            raise ConfigurationError(
                f"queue {self.name!r}: cost {self.cost!r} is unknown; use 'tasks' or 'runtime'"
            )
        if self.cost == "runtime" and (self.order == "fifo" or self.kind == "ordered"):
            what = "order='fifo'" if self.order == "fifo" else "kind='ordered'"
            raise ConfigurationError(
                f"queue {self.name!r}: cost='runtime' is for fair queues; leave {what} out, or"
                " cost= out"
            )
        if not (0 <= self.grace < math.inf and 1 <= self.look_ahead < math.inf):
            raise ConfigurationError(
                f"queue {self.name!r}: grace must be at least 0 s, look_ahead at least 1 s"
            )
        if not 1 <= self.partitions <= MOST_PARTITIONS:
            raise ConfigurationError(
                f"queue {self.name!r}: partitions must be 1 to {MOST_PARTITIONS}, not"
                f" {self.partitions}"
            )

    @property
    def is_ordered(self) -> bool:
        return self.kind == "ordered"
