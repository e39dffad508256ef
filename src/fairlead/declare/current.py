"""The task that runs in the current context, for its handler and its log lines."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from fairlead.clock import MICROS, to_datetime
from fairlead.declare.notes import Notes, decoded


class HasCurrent(Protocol):
    """A run of the engine, as this layer knows it."""

    @property
    def current(self) -> CurrentTask:
        """The running task, as its handler sees it."""


_run: ContextVar[HasCurrent | None] = ContextVar("fairlead_run", default=None)


@dataclass(slots=True, eq=False, repr=False)
class CurrentTask:
    """Properties of a run that its handler may use. `connection` is set only in transactional
    handlers. `context` is this run's own copy: the handler and its log lines see what an
    interceptor puts into it, also in a child process.

    `fence` is a fencing token: never lower than that of an earlier owner. In an ordered queue it is
    the range id of the partition's owner, equal for all runs of one owner; in other queues the
    version of the task, greater for each run of the task. A system that refuses a token below the
    greatest it has seen (for the ordering key, or for the task) refuses a worker that lost it."""

    id: str
    name: str
    queue: str
    version: int
    attempt: int
    tries: int
    priority: int
    fairness_key: str
    context: dict[str, str]
    deadline: datetime | None
    _ready_at: int
    """Microseconds since the epoch."""
    _started_at: int
    """Microseconds since the epoch."""
    fence: int
    notes: Notes
    connection: Any = None
    notifications: list[Any] = field(default_factory=list)
    cancel_reason: str | None = None
    _cancelled: threading.Event | None = None

    @property
    def ready_at(self) -> datetime:
        """Time from which this run could start, after its submit, due time or retry time. Aware,
        UTC."""
        return to_datetime(self._ready_at)

    @property
    def pickup_delay(self) -> float:
        """Seconds from `ready_at` to the start of this run; 0 if the clocks of two machines
        disagree."""
        return max(0, self._started_at - self._ready_at) / MICROS

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report the progress of this run, from 0 on, in a unit of its own: `handle.progress()`,
        `fairlead tasks show` and the console show it.

        Never waits: a worker writes the last report of each of its runs once a second, all in one
        statement, and the end of the run writes its last one. A note has at most 1,000 bytes; the
        rest of a longer one is cut off. Raises InvalidTask for a number below 0, NotSupported where
        the store keeps no progress.
        """
        self.notes.report(done, total, note)

    def checkpoint(self, value: object) -> None:
        """Store a JSON value for the next run of this task, in place of an earlier one, and return
        when it is stored durably. The next run finds it in `last_checkpoint`, also after a crash.
        The checkpoint is gone when the task is DONE, FAILED or CANCELLED.

        Raises InvalidTask for a value that is not JSON or has more bytes than `checkpoint_limit` of
        the App, StaleVersion if the task was given to another node, StoreUnavailable, and
        NotSupported in a transactional handler and where the store keeps no checkpoints.
        """
        self.notes.store(value)

    async def checkpoint_async(self, value: object) -> None:
        """Store a checkpoint as `checkpoint` does, in an `async def` handler."""
        await self.notes.store_async(value)

    @property
    def last_checkpoint(self) -> Any:
        """Value of the last checkpoint of this task, by this run or an earlier one; None without
        one."""
        return decoded(self.notes.checkpoint)

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop; a handler in a thread should check now and then, and
        return."""
        return self._cancelled is not None and self._cancelled.is_set()

    def cancel(self, reason: str) -> None:
        """Ask the run to stop. `reason`: see `fairlead.engine.run.CancelReason`."""
        self.cancel_reason = reason
        if self._cancelled is None:
            self._cancelled = threading.Event()
        self._cancelled.set()


def current_task() -> CurrentTask | None:
    """Return the task this code runs for; None outside a handler."""
    run = _run.get()
    return None if run is None else run.current


def current_run() -> HasCurrent | None:
    """Return the run that this code belongs to, also in asyncio tasks, timers and threads that it
    started with its context; None outside a handler."""
    return _run.get()


def set_run(run: HasCurrent | None) -> None:
    """Set the run of the current context; executors call it before and after a handler."""
    _run.set(run)


def enable_loggers() -> None:
    """Enable the loggers of Fairlead. `logging.config` disables all loggers that exist, unless told
    otherwise. A level still silences ours."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "fairlead":
            logger.disabled = False


class ContextFilter(logging.Filter):
    """Adds `task_id`, `task_name`, `attempt` and the task's context map to the log records of a
    run."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to a record; return True, since every record passes."""
        task = current_task()
        if task is not None:
            record.task_id = task.id
            record.task_name = task.name
            record.attempt = task.attempt
            record.context = dict(task.context)
        return True
