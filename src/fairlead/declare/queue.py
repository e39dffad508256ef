"""A declared queue."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core import values
from fairlead.core.limits.cluster_limits import AnyLimit, check_limit
from fairlead.errors import ConfigurationError

MOST_PARTITIONS = 1000
DEFAULT_PARTITIONS = 1
ORDERED_PARTITIONS = 120
"""Default partitions of an ordered queue. The number is fixed for good, so it is large enough for
any number of nodes."""


@dataclass(frozen=True)
class Queue:
    """A queue of tasks. One node at a time owns each partition and orders its tasks;
    every node that serves the queue runs them."""

    name: str
    order: str = "fair"
    """Order of tasks: "fair" (by fairness key, so that none delays another) or "fifo" (by
    arrival)."""
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

    def __post_init__(self) -> None:
        values.name("queue name", self.name)
        values.one_of(f"queue {self.name!r}: order", self.order, "fair", "fifo")
        values.one_of(f"queue {self.name!r}: kind", self.kind, "tasks", "ordered")
        values.one_of(f"queue {self.name!r}: cost", self.cost, "tasks", "runtime")
        if self.cost == "runtime" and (self.order == "fifo" or self.kind == "ordered"):
            what = "order='fifo'" if self.order == "fifo" else "kind='ordered'"
            raise ConfigurationError(
                f"queue {self.name!r}: cost='runtime' is for fair queues; leave {what} out, or"
                " cost= out"
            )
        values.number(f"queue {self.name!r}: grace", self.grace, 0, values.MOST_SECONDS)
        values.number(f"queue {self.name!r}: look_ahead", self.look_ahead, 1, values.MOST_SECONDS)
        values.whole(f"queue {self.name!r}: partitions", self.partitions, 1, MOST_PARTITIONS)
        check_limit(f"queue {self.name!r}: concurrency", self.concurrency)

    @property
    def is_ordered(self) -> bool:
        """Whether the queue is ordered by ordering key and time."""
        return self.kind == "ordered"
