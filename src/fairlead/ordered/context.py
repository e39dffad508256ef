"""What every part of a node's ordered queues works with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fairlead.clock import Clock
from fairlead.core.triggers.table import TriggerTable
from fairlead.ordered.outage_log import OutageLog
from fairlead.ports.observer import Observer
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog


@dataclass(frozen=True, kw_only=True)
class OrderedContext:
    """Adapters, the node's trigger table, and the node's side of what happens to runs."""

    node: str
    """Name of the node."""
    log: TaskLog
    store: ScheduleStore
    table: TriggerTable
    dispatch: Callable[[], None]
    """Called when tasks were put into the table."""
    stop_run: Callable[[str, bool], None]
    """Called to end the run of the task with this id. True: `ended` is to be called with how the
    run ended; False: only `let_go`, when the run is over."""
    settled: Callable[[Collection[str]], None]
    """Called with the ids of tasks whose ends are written, or needed by nobody any more."""
    observer: Observer
    clock: Clock
    outages: OutageLog = field(default_factory=OutageLog)
