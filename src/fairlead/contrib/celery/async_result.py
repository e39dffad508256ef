"""Results of submitted tasks, by id."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairlead.clock import to_datetime
from fairlead.contrib.celery import missing, signals, states
from fairlead.contrib.celery.custom_state import CustomState, reported
from fairlead.contrib.celery.exceptions import (
    ChordError,
    ImproperlyConfigured,
    TaskError,
    TaskRevokedError,
    TimeLimitExceeded,
    TimeoutError,
)
from fairlead.contrib.celery.messages import from_json, ignored
from fairlead.contrib.celery.request import Context, running
from fairlead.declare.handle import TaskHandle
from fairlead.errors import (
    NotAllowed,
    NotSupported,
    ResultNotKept,
    ResultTimeout,
    TaskFailed,
    UnknownTask,
)
from fairlead.model import State, TaskRecord

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery


class AsyncResult(missing.Names, names=missing.RESULT):
    """The result of a submitted task, by its id. Raises ValueError for an empty one."""

    def __init__(
        self,
        id: str,
        backend: Any = None,
        task_name: str | None = None,
        app: Celery | None = None,
        parent: Any = None,
    ) -> None:
        if not id:
            raise ValueError(f"AsyncResult requires valid id, not {type(id)}")
        self.id = str(id)
        self.parent = parent
        self._app = app
        self._name = task_name

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __str__(self) -> str:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult | str) and str(other) == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def app(self) -> Celery:
        """The application that it asks."""
        from fairlead.contrib.celery.app.current import current

        return self._app or current()

    @property
    def task_id(self) -> str:
        """Id of the task."""
        return self.id

    @property
    def handle(self) -> TaskHandle:
        """The handle of the task in Fairlead. Raises UnknownTask."""
        return self.app.handle_of(self.id)

    def record(self) -> TaskRecord | None:
        """Return the record of the task; None if it is unknown or not yet committed."""
        try:
            return self.handle.record()
        except UnknownTask:
            return None

    # state ----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """State of the task now; PENDING if it is unknown."""
        record = self.record()
        if record is None:
            return states.PENDING
        custom = self._custom(record)
        return states.state_of(record) if custom is None else custom.name

    @property
    def status(self) -> str:
        """State of the task now."""
        return self.state

    def ready(self) -> bool:
        """Return whether the task has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Return whether the task has succeeded."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Return whether the task has failed."""
        return self.state == states.FAILURE

    @property
    def name(self) -> str | None:
        """Name of the task."""
        record = self.record()
        return self._name if record is None else record.name

    @property
    def result(self) -> Any:
        """Return value of a task that succeeded, exception of one that failed, else None."""
        record = self.record()
        if record is None:
            return None
        if record.state is State.DONE:
            return from_json(self._kept())
        if (custom := self._custom(record)) is not None:
            return custom.meta
        if record.state is State.WAITING and states.state_of(record) != states.RETRY:
            return None
        return _error_of(record) if record.error_type or _has_ended(record) else None

    def _kept(self) -> Any:
        """Return the result of a task that is done; None if it was deleted before its history."""
        try:
            return self.handle.result(0)
        except ResultNotKept:
            return None

    def _custom(self, record: TaskRecord) -> CustomState | None:
        """Return the custom state of the run that is under way, or that ended with Ignore; None
        without one."""
        if record.state is State.DONE:
            found = ignored(self._kept())
            if found is None or found.state is None:
                return None
            return CustomState(found.state, found.meta)
        if record.state is not State.PROCESSING:
            return None
        try:
            progress = self.app.fairlead.handle(record.id).progress()
        except NotSupported:
            return None
        if progress is None or progress.attempt != record.attempt:
            return None
        return reported(progress.note)

    @property
    def info(self) -> Any:
        """Result or exception of the task, or the `meta` of its custom state while it runs."""
        return self.result

    @property
    def traceback(self) -> str | None:
        """Text of the last error with its traceback."""
        record = self.record()
        if record is None or record.error_type is None:
            return None
        text = record.error_text or ""
        return text[max(0, text.find("Traceback (most recent call last)")) :]

    @property
    def date_done(self) -> datetime | None:
        """Time of the end in UTC; None before it."""
        record = self.record()
        if record is None or not _has_ended(record):
            return None
        attempts = self.app.fairlead.management.attempts(record.id)
        return to_datetime(attempts[-1].finished_at) if attempts else None

    @property
    def retries(self) -> int:
        """Number of the tries after the first."""
        record = self.record()
        return 0 if record is None else max(0, record.tries - 1)

    @property
    def queue(self) -> str | None:
        """Queue of the task."""
        record = self.record()
        return None if record is None else record.queue

    @property
    def worker(self) -> str | None:
        """Node that has the task now."""
        record = self.record()
        return None if record is None else record.node

    def as_list(self) -> list[str]:
        """Return the ids of the task and of those before it."""
        return [self.id, *(() if self.parent is None else self.parent.as_list())]

    # waiting --------------------------------------------------------------------------------------

    # More than seven parameters: those of Celery's method.
    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        disable_sync_subtasks: bool = True,
        callback: Callable[[str, Any], Any] | None = None,
        on_message: Any = None,
        **options: Any,
    ) -> Any:
        """Wait for the end of the task, at most `timeout` seconds, and call `callback` with its id
        and its result. Return its result, or raise its exception; without `propagate`, return the
        exception. Raise TimeoutError, UnknownTask for an id that was never submitted,
        ImproperlyConfigured for `on_message`, and RuntimeError inside a task, which would keep a
        worker waiting for a worker."""
        check_get(disable_sync_subtasks, on_message)
        value = self._waited(timeout, propagate)
        if callback is not None:
            callback(self.id, value)
        return value

    def _waited(self, timeout: float | None, propagate: bool) -> Any:
        try:
            found = self.handle.result(timeout)
            end = ignored(found)
            if end is not None and end.state in states.PROPAGATE_STATES and propagate:
                raise TaskError(str(end.meta))
            return from_json(found)
        except ResultTimeout:
            raise TimeoutError("The operation timed out.") from None
        except TaskFailed:
            record = self.record()
            assert record is not None
            error = self._cause(record)
            if propagate:
                raise error from None
            return error

    def _cause(self, record: TaskRecord) -> Exception:
        """Return the exception of the task; for one that never ran, that of the task before it
        which failed, if this result knows it."""
        before = self.parent if states.broken(record) else None
        while isinstance(before, AsyncResult):
            found = before.record()
            has_failed = found and states.state_of(found) in states.PROPAGATE_STATES
            if found and has_failed and not states.broken(found):
                return _error_of(found)
            before = before.parent
        return _error_of(record)

    wait = get

    def maybe_throw(self, propagate: bool = True, callback: Any = None) -> Any:
        """Return the result of a task that has ended, or raise its exception."""
        result = self.result
        if propagate and isinstance(result, BaseException):
            raise result
        return result

    maybe_reraise = throw = maybe_throw

    def revoke(
        self, terminate: bool = False, signal: Any = None, wait: bool = False, **options: Any
    ) -> None:
        """Cancel the task if it has not ended. A running function sees
        `fairlead.current_task().cancelled`."""
        try:
            self.app.fairlead.management.cancel(self.handle.id, actor="revoke")
        except (NotAllowed, UnknownTask):
            return
        signals.task_revoked.send(
            sender=self.app.tasks.get(self.name or ""),
            request=Context(id=self.id, row_id=self.handle.id, task=self.name),
            terminated=terminate,
            signum=signal,
            expired=False,
        )

    def _drop(self) -> None:
        """Do nothing: the store removes results with its history."""

    forget = _drop

    def as_tuple(self) -> tuple[tuple[str, Any], None]:
        """Return ids for `result_from_tuple`."""
        parent = self.parent
        return (self.id, None if parent is None else parent.as_tuple()), None


def check_get(disable_sync_subtasks: bool, on_message: Any) -> None:
    """Raise RuntimeError inside a task, and ImproperlyConfigured for `on_message`."""
    if on_message is not None:
        raise ImproperlyConfigured(
            "get(on_message=): there are no messages about states; read result.info in a loop"
        )
    if disable_sync_subtasks and running() is not None:
        raise RuntimeError(
            "Never call result.get() within a task! Use a chord or a chain, or"
            " get(disable_sync_subtasks=False)"
        )


def _has_ended(record: TaskRecord) -> bool:
    return states.state_of(record) in states.READY_STATES


def _arguments(text: Any) -> tuple[Any, ...]:
    """Return the arguments of an exception with this text, which is a tuple if they are several."""
    if text == "":
        return ()
    with suppress(ValueError, SyntaxError, TypeError):
        found = ast.literal_eval(text)
        if isinstance(found, tuple) and len(found) > 1:
            return found
    return (text,)


def _error_of(record: TaskRecord) -> Exception:
    """Return the exception of a task that failed: of its own class if that is imported here, else
    of one with the same name."""
    reason = states.broken(record)
    if reason is not None:
        return ChordError(reason.reason)
    if record.state is State.CANCELLED:
        return TaskRevokedError(record.error_text or "revoked")
    name = record.error_type or ""
    error: Exception
    text: Any = (record.error_text or "").partition("\nTraceback ")[0]
    if name == "KeyError":  # whose text is the representation of its argument
        with suppress(ValueError, SyntaxError):
            text = ast.literal_eval(text)
    if name == "fairlead.errors.TaskTimeout":
        return TimeLimitExceeded(text)
    module_name, _, qualified = name.rpartition(".")
    module: Any = sys.modules.get(module_name) if module_name else builtins
    kind = getattr(module, qualified, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(*_arguments(text))
        except Exception:  # a class with other parameters
            error = kind.__new__(kind)
            error.args = (text,)
            return error
    made: Mapping[str, Any] = {"__module__": module_name}
    error = type(qualified or "TaskError", (TaskError,), dict(made))(text)
    return error
