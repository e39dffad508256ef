"""A declared queue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from fairlead.core import values
from fairlead.core.limits.cluster_limits import AnyLimit, check_limit
from fairlead.core.policies.retry import DEFAULT_RETRY, UNTIL_DONE
from fairlead.declare.options import Options
from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from fairlead.declare.handler import Handler

MOST_PARTITIONS = 1000
DEFAULT_PARTITIONS = 1
ORDERED_PARTITIONS = 120
"""Default partitions of an ordered queue. The number is fixed for good, so it is large enough for
any number of nodes."""

_SLOT_KNOWN_FOR = timedelta(days=1)
"""Time for which a slot is known, so that two expressions of a task that meet submit it once."""


@dataclass(frozen=True)
class Queue:
    """A queue of tasks. One node at a time owns each partition and orders its tasks;
    every node that serves the queue runs them."""

    name: str
    order: str = "fair"
    """Order of tasks: "fair" (by fairness key, so that none delays another) or "fifo" (by
    arrival)."""
    concurrency: AnyLimit | None = None
    cost: str = "tasks"
    """Quantity that fairness keys share by weight: "tasks" (the number of runs) or "runtime" (the
    time that they take)."""
    partitions: int = DEFAULT_PARTITIONS

    def __post_init__(self) -> None:
        values.name("queue name", self.name)
        values.one_of(f"queue {self.name!r}: order", self.order, "fair", "fifo")
        values.one_of(f"queue {self.name!r}: cost", self.cost, "tasks", "runtime")
        if self.cost == "runtime" and self.order == "fifo":
            raise ConfigurationError(
                f"queue {self.name!r}: cost='runtime' is for fair queues; leave order='fifo' out,"
                " or cost= out"
            )
        values.whole(f"queue {self.name!r}: partitions", self.partitions, 1, MOST_PARTITIONS)
        check_limit(f"queue {self.name!r}: concurrency", self.concurrency)

    def fit(self, handler: Handler) -> None:
        """Fit a task to this queue. Raise ConfigurationError for options that do not fit it."""

    def slot_options(
        self, task: str, slot: datetime, ordering_key: str | None, skips: bool
    ) -> Options:
        """Return the options of one slot of a periodic task. The unique key prevents a second task
        for the slot, or while another one waits or runs if the periodic task `skips` slots. Raise
        ConfigurationError if slots cannot be skipped."""
        key = f"periodic/{task}"
        return Options(
            unique_key=key if skips else f"{key}/{slot.isoformat()}",
            unique_for=None if skips else _SLOT_KNOWN_FOR,
            ordering_key=ordering_key,
        )


@dataclass(frozen=True)
class OrderedQueue(Queue):
    """A queue whose tasks go through a log into a schedule, and run one at a time for each ordering
    key, in the order of their times."""

    partitions: int = ORDERED_PARTITIONS
    grace: float = 10.0
    """Greatest number of seconds by which the `run_at` of a task may lie in the past when it is
    submitted."""
    look_ahead: float = 300.0
    """Seconds before its `run_at` at which a task is read into memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cost == "runtime":
            raise ConfigurationError(
                f"queue {self.name!r}: cost='runtime' is for fair queues; leave kind='ordered' out,"
                " or cost= out"
            )
        values.number(f"queue {self.name!r}: grace", self.grace, 0, values.MOST_SECONDS)
        values.number(f"queue {self.name!r}: look_ahead", self.look_ahead, 1, values.MOST_SECONDS)

    def fit(self, handler: Handler) -> None:
        """Let the task retry for ever unless it declares a policy of its own."""
        for is_set, what in (
            (handler.transactional, "transactional=True"),
            (handler.kept.result, "keep_result=True"),
            (handler.kept.is_log_asked, "keep_log=True"),
        ):
            if is_set:
                raise ConfigurationError(
                    f"task {handler.name!r}: {what} does not work with the ordered queue"
                    f" {self.name!r}; use another queue"
                )
        handler.kept = replace(handler.kept, log=False)
        if handler.retry is DEFAULT_RETRY:
            handler.retry = UNTIL_DONE

    def slot_options(
        self, task: str, slot: datetime, ordering_key: str | None, skips: bool
    ) -> Options:
        """Return options whose time is the slot. By default, all slots of a task have one ordering
        key."""
        if skips:
            raise ConfigurationError(
                f"periodic task {task!r}: overlap='skip': queue {self.name!r} is ordered and runs"
                " each slot, one after the other; leave it out"
            )
        key = f"periodic/{task}"
        return Options(
            unique_key=f"{key}/{slot.isoformat()}", ordering_key=ordering_key or key, run_at=slot
        )
