"""What the partitions of a node's ordered queues work with, and whom they tell."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fairlead.clock import Clock
from fairlead.core.triggers.table import TriggerTable
from fairlead.ordered.outage_log import OutageLog
from fairlead.ports.observer import Observer
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog


@dataclass(frozen=True)
class Surroundings:
    """See the module."""

    node: str
    log: TaskLog
    store: ScheduleStore
    table: TriggerTable
    dispatch: Callable[[], None]
    """There is something in the table."""
    stop_run: Callable[[str, bool], None]
    """End the run of this task. True: `ended` is to be called with how it ended; False: only
    `let_go`, when it is over."""
    settled: Callable[[Collection[str]], None]
    """The ends of the runs of these tasks are written, or nobody needs them any more."""
    observer: Observer
    clock: Clock
    outages: OutageLog = field(default_factory=OutageLog)
