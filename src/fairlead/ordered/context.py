"""The context of a node's ordered queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from fairlead.core.fair.table import TriggerTable
from fairlead.model import IncidentReport, PartitionKey
from fairlead.ordered.clock_guard import ClockGuard
from fairlead.ports.observer import Observer
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog

log = logging.getLogger("fairlead.ordered")

_LEAST_BYTES = 1 << 20
"""Least bytes of tasks in memory for each partition."""


class OutageLog:
    """Log an outage once per node, not once per partition."""

    def __init__(self) -> None:
        self._failing: dict[PartitionKey, None] = {}
        self._most = 0

    def failed(self, partition: PartitionKey) -> int:
        """Note that the store was unavailable for a partition. Return how many partitions fail now
        if this is the first, else 0."""
        self._failing[partition] = None
        self._most = max(self._most, len(self._failing))
        return len(self._failing) if next(iter(self._failing)) == partition else 0

    def over(self, partition: PartitionKey) -> None:
        """Note that the store responded to a partition; log the end of the outage after the last
        one."""
        if partition in self._failing:
            self.drop(partition)
            if not self._failing:
                log.info(
                    "the partitions of ordered queues are loaded again",
                    extra={"partitions": self._most},
                )
                self._most = 0

    def drop(self, partition: PartitionKey) -> None:
        """Drop a partition that another node owns now."""
        self._failing.pop(partition, None)


@dataclass(frozen=True, kw_only=True)
class OrderedContext:
    """Ports, the node's trigger table, and callbacks for the ends of runs."""

    node: str
    """Name of the node."""
    log: TaskLog
    store: ScheduleStore
    table: TriggerTable
    dispatch: Callable[[], None]
    """Callback after tasks were put into the table."""
    stop_run: Callable[[str, bool], None]
    """Callback to stop the run of a task. With True, the end of the run is passed to `ended`; with
    False, only `drop_ended` is called after the run."""
    settled: Callable[[Collection[str]], None]
    """Callback with the ids of tasks whose ends are written or need no writing."""
    end_refused: Callable[[str], None] = lambda task_id: None
    """Callback with the id of a task whose end the store refuses."""
    on_incidents: Callable[[Sequence[IncidentReport]], None]
    """Callback to record conditions that need a person."""
    is_paused: Callable[[str], bool] = lambda queue: False
    """Callback that returns whether a queue is paused."""
    on_last_pause: Callable[[str], None] = lambda queue: None
    """Callback with a queue that was paused when the last owner saved its record."""
    observer: Observer
    clock: ClockGuard
    most_bytes: int = 64_000_000
    """Bytes of the tasks in memory of all partitions."""
    outages: OutageLog = field(default_factory=OutageLog)

    def bytes_of_each(self, partitions: int) -> int:
        """Return the bytes of the tasks in memory of each of this number of partitions."""
        return max(_LEAST_BYTES, self.most_bytes // partitions)
