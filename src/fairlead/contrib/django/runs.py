"""Runs of Django tasks: the handlers that call their functions, and the signals of each run."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.utils import timezone

from fairlead.clock import to_datetime
from fairlead.contrib.django.compat import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from fairlead.contrib.django.task import FairleadTask
from fairlead.declare.current import CurrentTask, current_task
from fairlead.declare.handler import Handler
from fairlead.engine.outcome import encoded
from fairlead.errors import InvalidTask, Retry, Snooze

Backend = Any
"""A `fairlead.contrib.django.backend.FairleadBackend`."""


def handler_function(backend: Backend, task: FairleadTask) -> Callable[..., Any]:
    """Return the function that Fairlead runs for a Django task. Its arguments are those of the
    Django task as data, and Django's priority, which Fairlead's own does not keep whole."""
    if iscoroutinefunction(task.func):

        async def run_async(
            args: list[Any] = [],  # noqa: B006 - copied for each run
            kwargs: dict[str, Any] = {},  # noqa: B006
            priority: int = 0,
        ) -> Any:
            this = await sync_to_async(_Run)(backend, task, args, kwargs, priority)
            await task_started.asend(type(backend), task_result=this.result)
            try:
                value = this.succeed(await task.func(*this.arguments, **kwargs))
            except BaseException as error:
                if this.fail(error):
                    await task_finished.asend(type(backend), task_result=this.result)
                raise
            await task_finished.asend(type(backend), task_result=this.result)
            return value

        return run_async

    # A transactional handler takes the connection of the driver; Django's own is the same one.
    def run(
        args: list[Any] = [],  # noqa: B006 - copied for each run
        kwargs: dict[str, Any] = {},  # noqa: B006
        priority: int = 0,
        connection: Any = None,
    ) -> Any:
        this = _Run(backend, task, args, kwargs, priority)
        task_started.send(type(backend), task_result=this.result)
        try:
            value = this.succeed(task.func(*this.arguments, **kwargs))
        except BaseException as error:
            if this.fail(error):
                task_finished.send(type(backend), task_result=this.result)
            raise
        task_finished.send(type(backend), task_result=this.result)
        return value

    if task.transactional:
        return run

    def run_alone(
        args: list[Any] = [],  # noqa: B006 - copied for each run
        kwargs: dict[str, Any] = {},  # noqa: B006
        priority: int = 0,
    ) -> Any:
        return run(args, kwargs, priority)

    return run_alone


class _Run:
    """One run of a Django task, and its result as the signals and the context show it."""

    def __init__(
        self,
        backend: Backend,
        task: FairleadTask,
        args: list[Any],
        kwargs: dict[str, Any],
        priority: int,
    ) -> None:
        current = current_task()
        assert current is not None
        self._backend = backend
        self._current: CurrentTask = current
        self._handler: Handler = backend.app.handlers[current.name]
        self._data = {"args": args, "kwargs": kwargs, "priority": priority}
        now = timezone.now()
        found = backend.find_result(current.id) if current.attempt > 1 else None
        node = backend.app.node_name or f"{socket.gethostname()}-{os.getpid()}"
        self.result: Any = TaskResult(
            task=task.stored(current.queue, priority),
            id=current.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=local(to_datetime(_submitted_at(current.id))),
            started_at=now if found is None or found.started_at is None else found.started_at,
            finished_at=None,
            last_attempted_at=now,
            args=args,
            kwargs=kwargs,
            backend=backend.alias,
            errors=[] if found is None else found.errors,
            worker_ids=[node] if found is None else found.worker_ids or [node],
        )
        context = [TaskContext(task_result=self.result)] if task.takes_context else []
        self.arguments = [*context, *args]
        """Positional arguments of the function."""

    def succeed(self, returned: Any) -> dict[str, Any]:
        """Record a success; return what Fairlead keeps. Raise InvalidTask for a value that is not
        JSON or is too large, which no retry can mend."""
        try:
            value = normalize_json(returned)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidTask(f"its return value is not JSON: {error}") from error
        encoded(value, self._handler, True)
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)
        return {**self._data, "return_value": value}

    def fail(self, error: BaseException) -> bool:
        """Record an error. Return whether the task has no further try."""
        self.result.errors.append(error_of(error))
        if not self._is_last(error):
            object.__setattr__(self.result, "status", TaskResultStatus.READY)
            return False
        self._end(TaskResultStatus.FAILED)
        return True

    def _end(self, status: Any) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())

    def _is_last(self, error: BaseException) -> bool:
        if isinstance(error, Snooze) or self._current.cancel_reason not in (None, "timeout"):
            return False
        if isinstance(error, InvalidTask):
            return True
        cause = (error.__cause__ or error) if isinstance(error, Retry) else error
        resets = isinstance(error, Retry) and error.reset_tries
        return self._handler.retry.delay(1 if resets else self._current.tries, cause) is None


def error_of(error: BaseException) -> Any:
    """Return an error as Django shows it."""
    kind = type(error)
    text = "".join(traceback.format_exception(error))
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)


def local(instant: Any) -> Any:
    """Return an aware instant as this project has its datetimes: naive without USE_TZ."""
    from django.conf import settings

    return instant if settings.USE_TZ else timezone.make_naive(instant)


def _submitted_at(task_id: str) -> int:
    """Return the instant in an id, in microseconds since the epoch, to the millisecond."""
    return int(task_id.replace("-", "")[:12], 16) * 1000
