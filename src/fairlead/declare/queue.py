"""A declared queue."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.core.limits.cluster_limits import AnyLimit
from fairlead.errors import ConfigurationError

MOST_PARTITIONS = 1000
DEFAULT_PARTITIONS = 1
MOST_NAME_BYTES = 200
ORDERED_PARTITIONS = 120
"""Default partitions of an ordered queue. The number is fixed for good, so it is large enough for
any number of nodes."""
LEAST_STARVE_AFTER = 0.1


@dataclass(frozen=True)
class Queue:
    """A queue of tasks. One node at a time owns each partition and orders its tasks;
    every node that serves the queue runs them."""

    name: str
    order: str | None = None
    """Order of tasks: "fair" (by level, so that no fairness key delays another) or "fifo" (by
    arrival). The default is "fair", except on a channel that decides the order itself (Redis)."""
    partitions: int = DEFAULT_PARTITIONS
    concurrency: AnyLimit | None = None
    kind: str = "tasks"
    """Kind of queue: "ordered" (tasks go through a log into a schedule, and run one at a time for
    each ordering key) or "tasks" (all other queues)."""
    grace: float = 10.0
    """Greatest number of seconds by which the `run_at` of a task may lie in the past when it is
    submitted to an ordered queue."""
    look_ahead: float = 300.0
    """Seconds before its `run_at` at which a task of an ordered queue is read into memory."""
    cost: str = "tasks"
    """Quantity that fairness keys share by weight: "tasks" (the number of runs) or "runtime" (the
    time that they take)."""

    starve_after: float | None = None
    """Seconds without a start after which a lower priority of the queue gets one start in ten of a
    node although higher priorities have work; None leaves priorities strict."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
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
        if self.starve_after is not None and not (
            LEAST_STARVE_AFTER <= self.starve_after < math.inf
        ):
            raise ConfigurationError(
                f"queue {self.name!r}: starve_after must be at least {LEAST_STARVE_AFTER:g} s, not"
                f" {self.starve_after!r}; leave it out to keep priorities strict"
            )
        if self.starve_after is not None and self.kind == "ordered":
            raise ConfigurationError(
                f"queue {self.name!r}: an ordered queue has no priorities; leave starve_after= out"
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
        """Whether the queue is ordered by ordering key and time."""
        return self.kind == "ordered"


def is_name(text: str) -> bool:
    """Return whether every store can keep this text as the name of a queue or task."""
    try:
        return bool(text.strip()) and "\0" not in text and len(text.encode()) <= MOST_NAME_BYTES
    except UnicodeEncodeError:
        return False
