"""Exceptions that Celery's projects catch and raise, under the names that they know."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fairlead.errors import ConfigurationError


class CeleryError(Exception):
    """Base of the exceptions of this module."""


class TaskPredicate(CeleryError):
    """Base of what a task raises to say how its run ends."""


class Retry(TaskPredicate):
    """Raised by `self.retry()`: run again at `when`, a number of seconds or a datetime."""

    def __init__(
        self,
        message: str | None = None,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
        is_eager: bool = False,
        sig: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(message, exc, when)
        self.message = message
        self.exc = exc
        self.when = when
        self.is_eager = is_eager
        self.is_submitted = False
        """Whether a new task was submitted for the retry."""
        self.sig = sig

    def humanize(self) -> str:
        """Return when the task runs again."""
        if isinstance(self.when, datetime):
            return f"at {self.when.isoformat()}"
        return f"in {self.when}s"

    def __str__(self) -> str:
        if self.message:
            return self.message
        why = "" if self.exc is None else f": {self.exc!r}"
        when = self.when
        if isinstance(when, datetime):
            return f"Retry at {when.isoformat()}{why}"
        return f"Retry in {when}s{why}" if when is not None else f"Retry{why}"


RetryTaskError = Retry


class Ignore(TaskPredicate):
    """Raised by a task to end its run without a result."""


class Reject(TaskPredicate):
    """Raised by a task to reject its message. With `requeue`, the task runs again."""

    def __init__(self, reason: object = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue

    def __repr__(self) -> str:
        return f"reject requeue={self.requeue}: {self.reason}"


class ImproperlyConfigured(CeleryError, ConfigurationError):
    """Raised for settings and options that the shim cannot carry out."""


class TaskError(CeleryError):
    """Base of the errors of tasks."""


class NotRegistered(KeyError, TaskError):
    """Raised for a task that is not registered."""


class MaxRetriesExceededError(TaskError):
    """Raised by `self.retry()` if the tries of the task are used up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.task_args = kwargs.pop("task_args", [])
        self.task_kwargs = kwargs.pop("task_kwargs", {})
        super().__init__(*args)


class TaskRevokedError(TaskError):
    """Raised by `result.get()` for a task that was revoked."""


class ChordError(TaskError):
    """Raised by `result.get()` for the body of a chord whose header failed, and for a task after a
    failed one in a chain of tasks."""


class TimeoutError(TaskError):
    """Raised by `result.get()` after its timeout."""


class IncompleteStream(TaskError):
    """Kept so that imports work; never raised."""


class TimeLimitExceeded(Exception):
    """Error of a run that exceeded its time limit."""

    def __str__(self) -> str:
        return "TimeLimitExceeded" + str(self.args)


class SoftTimeLimitExceeded(Exception):
    """Raised inside a task that exceeded its soft time limit."""

    def __str__(self) -> str:
        return "SoftTimeLimitExceeded" + str(self.args)


class OperationalError(Exception):
    """Raised if the store of the tasks cannot be reached while a task is submitted."""


class WorkerLostError(Exception):
    """Kept so that imports work; a task whose worker died runs again."""
