"""The task that runs here and now, as its handler and its log lines see it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol


class Run(Protocol):
    """Whatever knows the task that runs: an execution of the engine, or the task itself in a child process."""

    @property
    def current(self) -> CurrentTask:
        """What the handler may know."""


_run: ContextVar[Run | None] = ContextVar("fairlead_run", default=None)


class CurrentTask:
    """What a handler may know about its own run. `connection` is set in transactional handlers only."""

    __slots__ = ("_cancelled", "attempt", "connection", "context", "deadline", "fairness_key", "id", "name", "priority",
                 "queue", "tries", "version", "wakes")  # fmt: skip

    def __init__(
        self,
        id: str,
        name: str,
        queue: str,
        version: int,
        attempt: int,
        tries: int,
        priority: int,
        fairness_key: str,
        context: Mapping[str, str],
        deadline: datetime | None,
    ) -> None:
        self.id = id
        self.name = name
        self.queue = queue
        self.version = version
        self.attempt = attempt
        self.tries = tries
        self.priority = priority
        self.fairness_key = fairness_key
        self.context = context
        self.deadline = deadline
        self.connection: Any = None
        self.wakes: list[Any] = []
        self._cancelled: threading.Event | None = None

    @property
    def current(self) -> CurrentTask:
        """Itself: it is its own run."""
        return self

    @property
    def cancelled(self) -> bool:
        """True once the run was asked to stop: a handler in a thread should look now and then, and return."""
        return self._cancelled is not None and self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask the run to stop."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
        self._cancelled.set()


def current_task() -> CurrentTask | None:
    """The task this code runs for; None outside a handler."""
    run = _run.get()
    return None if run is None else run.current


def set_run(run: Run | None) -> None:
    """Used by executors around a handler."""
    _run.set(run)


class ContextFilter(logging.Filter):
    """Puts `task_id`, `task_name`, `attempt` and the task's context map on every log record of its run."""

    def filter(self, record: logging.LogRecord) -> bool:
        task = current_task()
        if task is not None:
            record.task_id = task.id
            record.task_name = task.name
            record.attempt = task.attempt
            record.context = dict(task.context)
        return True
