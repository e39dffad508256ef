"""Results of submitted tasks by id, of groups, and of tasks that ran at the call."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from fairlead.contrib.celery import exceptions, missing, states
from fairlead.contrib.celery.messages import from_json, running
from fairlead.declare.handle import TaskHandle
from fairlead.errors import NotAllowed, ResultNotKept, ResultTimeout, TaskFailed, UnknownTask
from fairlead.model import State, TaskRecord

__getattr__ = missing.lookup(__name__)
_STATES = {State.DONE: states.SUCCESS, State.ERROR: states.FAILURE, State.FAILED: states.FAILURE}
_STATES |= {State.PROCESSING: states.STARTED, State.CANCELLED: states.REVOKED}
Ended = tuple[str, Any, str | None]
"""State, result or exception, and traceback of a task."""


class AsyncResult(missing.OfApplication):
    """The result of a submitted task, by its id. Raises ValueError for an empty one."""

    def __init__(
        self, id: str, *, app: Any = None, parent: Any = None, ended: Ended | None = None
    ) -> None:
        """`ended`: the end of a task that ran at the call."""
        if not id:
            raise ValueError(f"AsyncResult requires valid id, not {type(id)}")
        self.id = self.task_id = str(id)
        self.parent = parent
        self._app = app
        self._ended = ended

    def __str__(self) -> str:
        return self.id

    @property
    def handle(self) -> TaskHandle:
        """The handle of the task in Fairlead."""
        handle: TaskHandle = self.app.fairlead.handle(self.id)
        return handle

    def _now(self) -> Ended:
        if self._ended is not None:
            return self._ended
        try:
            record = self.handle.record()
        except UnknownTask:
            return states.PENDING, None, None
        state, text = _STATES.get(record.state, states.PENDING), record.error_text or ""
        value = None
        if record.state is State.WAITING and record.tries > 0 and record.error_type:
            state = states.RETRY
        if state == states.SUCCESS:
            with suppress(ResultNotKept):  # it was deleted before its history
                value = from_json(self.handle.result(0))
        elif state not in (states.PENDING, states.STARTED):
            value = self._error(record)
        return state, value, text[max(0, text.find("Traceback (")) :] or None

    state = property(lambda self: self._now()[0], doc="State; PENDING if the id is unknown.")
    status = state
    result = property(lambda self: self._now()[1], doc="Return value, exception, or None.")
    info = result
    traceback = property(lambda self: self._now()[2], doc="Text of the last error.")

    def ready(self) -> bool:
        """Return whether the task has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Return whether the task has succeeded."""
        return bool(self.state == states.SUCCESS)

    def failed(self) -> bool:
        """Return whether the task has failed."""
        return bool(self.state == states.FAILURE)

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> Any:
        """Wait for the end of the task, at most `timeout` seconds. Return its result, or raise its
        exception; without `propagate`, return the exception. Raise TimeoutError, UnknownTask for an
        id that was never submitted, and RuntimeError inside a task, which would keep a worker
        waiting for a worker, except with `disable_sync_subtasks=False`. Raise ImproperlyConfigured
        for `callback` and `on_message`; options about polling have no meaning here."""
        for name in {"callback", "on_message"} & options.keys():
            raise missing.refusal("get: option", name)
        if options.get("disable_sync_subtasks", True) and running.get() is not None:
            raise RuntimeError("Never call result.get() within a task! Use a chord or a chain")
        if self._ended is None:
            try:
                self.handle.result(timeout)
            except ResultTimeout:
                raise exceptions.TimeoutError("The operation timed out.") from None
            except TaskFailed:
                pass
        value = self.result
        if propagate and isinstance(value, BaseException):
            raise value
        return value

    wait = get

    def _error(self, record: TaskRecord) -> Exception:
        """Return the exception of a task that failed; for one that never ran, that of the task
        before it which failed, if this result knows it."""
        error = _error_of(record)
        is_first = self.parent is None or not isinstance(error, exceptions.ChordError)
        before = None if is_first else getattr(self.parent, "result", None)
        return before if isinstance(before, Exception) else error

    def revoke(self, **options: Any) -> None:
        """Cancel the task if it has not ended, as with `terminate=True`. A running function goes
        on, and sees `fairlead.current_task().cancelled`."""
        with suppress(NotAllowed, UnknownTask):
            self.app.fairlead.management.cancel(self.id, actor="revoke")


class GroupResult(missing.Names):
    """The results of the tasks of a group, in order."""

    def __init__(self, results: Iterable[Any], parent: Any = None) -> None:
        self.results = list(results)
        self.parent = parent

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]

    def ready(self) -> bool:
        """Return whether all tasks have ended."""
        return all(each.ready() for each in self)

    def successful(self) -> bool:
        """Return whether all tasks have succeeded."""
        return all(each.successful() for each in self)

    def get(self, timeout: float | None = None, **options: Any) -> list[Any]:
        """Wait for all tasks, at most `timeout` seconds together; return the list of their results.
        Raise as `AsyncResult.get`."""
        end = time.monotonic() + (timeout or 0)
        left = (None if timeout is None else max(0.0, end - time.monotonic()) for _ in self)
        return [each.get(next(left), **options) for each in self]

    join = get


def grouped(found: Any) -> Any:
    """Return a result as it is, and a list of results, however deep, as a GroupResult."""
    if not isinstance(found, list):
        return found
    results = [grouped(each) for each in found]
    return GroupResult(results, results[0].parent if results else None)


def _error_of(record: TaskRecord) -> Exception:
    """Return the exception of a task that failed, of its own class if that is imported here."""
    text = (record.error_text or "").partition("\nTraceback ")[0]
    if record.state is State.CANCELLED:
        return exceptions.TaskRevokedError(text)
    module, _, name = (record.error_type or "").rpartition(".")
    kind = getattr(sys.modules.get(module) if module else builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return exceptions.CeleryError(f"{record.error_type}: {text}")
    try:
        return kind(text)
    except Exception:  # a class with other parameters
        error = kind.__new__(kind)
        error.args = (text,)
        return error
