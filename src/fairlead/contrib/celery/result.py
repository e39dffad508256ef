"""Results of submitted tasks by id, of groups, and of tasks that ran here."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery import states
from fairlead.contrib.celery.exceptions import (
    ChordError,
    TaskError,
    TaskRevokedError,
    TimeLimitExceeded,
    TimeoutError,
)
from fairlead.contrib.celery.messages import from_json
from fairlead.contrib.celery.request import running
from fairlead.declare.handle import TaskHandle
from fairlead.errors import NotAllowed, ResultTimeout, TaskFailed, UnknownTask
from fairlead.model import State, TaskRecord

if TYPE_CHECKING:
    from fairlead.contrib.celery.app import Celery


class AsyncResult:
    """The result of a submitted task, by its id. Raises ValueError for an empty one."""

    def __init__(
        self,
        id: str,
        backend: Any = None,
        task_name: str | None = None,
        app: Celery | None = None,
        parent: Result | None = None,
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
        from fairlead.contrib.celery.app import current

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
        return states.PENDING if record is None else states.state_of(record)

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
            return from_json(self.handle.result(0))
        if record.state is State.WAITING and states.state_of(record) != states.RETRY:
            return None
        return _error_of(record) if record.error_type or _has_ended(record) else None

    @property
    def info(self) -> Any:
        """Result or exception of the task."""
        return self.result

    @property
    def traceback(self) -> str | None:
        """Text of the last error with its traceback."""
        record = self.record()
        return None if record is None or record.error_type is None else record.error_text

    @property
    def children(self) -> list[Any]:
        """Tasks that it submitted, which are not recorded: always empty."""
        return []

    # waiting --------------------------------------------------------------------------------------

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        disable_sync_subtasks: bool = True,
        **options: Any,
    ) -> Any:
        """Wait for the end of the task, at most `timeout` seconds. Return its result, or raise its
        exception; without `propagate`, return the exception. Raise TimeoutError, UnknownTask for
        an id that was never submitted, and RuntimeError inside a task, which would keep a worker
        waiting for a worker."""
        if disable_sync_subtasks and running() is not None:
            raise RuntimeError(
                "Never call result.get() within a task! Use a chord or a chain, or"
                " get(disable_sync_subtasks=False)"
            )
        try:
            return from_json(self.handle.result(timeout))
        except ResultTimeout:
            raise TimeoutError("The operation timed out.") from None
        except TaskFailed:
            record = self.record()
            assert record is not None
            error = _error_of(record)
            if propagate:
                raise error from None
            return error

    wait = get

    def maybe_throw(self, propagate: bool = True, callback: Any = None) -> Any:
        """Return the result of a task that has ended, or raise its exception."""
        result = self.result
        if propagate and isinstance(result, BaseException):
            raise result
        return result

    maybe_reraise = maybe_throw

    def revoke(
        self, terminate: bool = False, signal: Any = None, wait: bool = False, **options: Any
    ) -> None:
        """Cancel the task if it has not ended. A running function sees
        `fairlead.current_task().cancelled`."""
        try:
            self.app.fairlead.management.cancel(self.handle.id, actor="revoke")
        except (NotAllowed, UnknownTask):
            return

    def _drop(self) -> None:
        """Do nothing: the store removes results with its history."""

    forget = _drop

    def as_tuple(self) -> tuple[tuple[str, Any], None]:
        """Return ids for `result_from_tuple`."""
        parent = self.parent
        return (self.id, None if parent is None else parent.as_tuple()), None


class GroupResult:
    """The results of the tasks of a group, in order."""

    def __init__(
        self,
        id: str | None = None,
        results: Sequence[Result] = (),
        parent: Result | None = None,
    ) -> None:
        self.id = id
        self.results = list(results)
        self.parent = parent

    def __repr__(self) -> str:
        return f"<GroupResult: {self.id} [{', '.join(str(each) for each in self.results)}]>"

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Result:
        return self.results[index]

    @property
    def children(self) -> list[Result]:
        """The results."""
        return self.results

    def ready(self) -> bool:
        """Return whether all tasks have ended."""
        return all(each.ready() for each in self.results)

    def successful(self) -> bool:
        """Return whether all tasks have succeeded."""
        return all(each.successful() for each in self.results)

    def failed(self) -> bool:
        """Return whether a task has failed."""
        return any(each.failed() for each in self.results)

    def waiting(self) -> bool:
        """Return whether a task has not ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return the number of tasks that have succeeded."""
        return sum(each.successful() for each in self.results)

    def get(
        self, timeout: float | None = None, propagate: bool = True, **options: Any
    ) -> list[Any]:
        """Wait for all tasks, at most `timeout` seconds together; return the list of their
        results. Raise as `AsyncResult.get`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        results = []
        for each in self.results:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            results.append(each.get(timeout=left, propagate=propagate, **options))
        return results

    join = join_native = get

    def revoke(self, **options: Any) -> None:
        """Cancel all tasks that have not ended."""
        for each in self.results:
            each.revoke(**options)

    def _drop(self) -> None:
        """Do nothing: the store removes results with its history."""

    forget = _drop

    def as_tuple(self) -> tuple[Any, ...]:
        """Return ids for `result_from_tuple`."""
        parent = self.parent
        return (
            (self.id, None if parent is None else parent.as_tuple()),
            [each.as_tuple() for each in self.results],
        )


ResultSet = GroupResult


class EagerResult(AsyncResult):
    """The result of a task that ran here."""

    def __init__(
        self,
        id: str,
        ret_value: Any,
        state: str,
        traceback: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(id, task_name=name)
        self._result = ret_value
        self._state = state
        self._traceback = traceback

    def __repr__(self) -> str:
        return f"<EagerResult: {self.id}>"

    def record(self) -> TaskRecord | None:
        return None

    @property
    def state(self) -> str:
        """State in which the run ended."""
        return self._state

    @property
    def name(self) -> str | None:
        """Name of the task."""
        return self._name

    @property
    def result(self) -> Any:
        """Return value or exception."""
        return self._result

    @property
    def traceback(self) -> str | None:
        """Text of the exception with its traceback."""
        return self._traceback

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        disable_sync_subtasks: bool = True,
        **options: Any,
    ) -> Any:
        """Return the result, or raise the exception."""
        if self._state == states.SUCCESS or not propagate:
            return self._result
        error = self._result
        raise error if isinstance(error, BaseException) else TaskError(str(error))

    wait = get

    def revoke(
        self, terminate: bool = False, signal: Any = None, wait: bool = False, **options: Any
    ) -> None:
        """Do nothing: the task has ended."""


Result = AsyncResult | GroupResult
"""Result of one task or of a group."""


def result_from_tuple(given: Any, app: Celery | None = None) -> Result:
    """Return the result of `as_tuple`."""
    (id, parent), children = given
    before = None if parent is None else result_from_tuple(parent, app)
    if children is None:
        return AsyncResult(id, app=app, parent=before)
    return GroupResult(id, [result_from_tuple(each, app) for each in children], before)


def _has_ended(record: TaskRecord) -> bool:
    return states.state_of(record) in states.READY_STATES


def _error_of(record: TaskRecord) -> Exception:
    """Return the exception of a task that failed: of its own class if that is imported here, else
    of one with the same name."""
    reason = states.broken(record)
    if reason is not None:
        return ChordError(reason.reason)
    if record.state is State.CANCELLED:
        return TaskRevokedError(record.error_text or "revoked")
    name = record.error_type or ""
    text = (record.error_text or "").partition("\nTraceback ")[0]
    if name == "fairlead.errors.TaskTimeout":
        return TimeLimitExceeded(text)
    module_name, _, qualified = name.rpartition(".")
    module: Any = sys.modules.get(module_name) if module_name else builtins
    kind = getattr(module, qualified, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except Exception:  # a class with other parameters
            text = f"{qualified}: {text}"
    made: Mapping[str, Any] = {"__module__": module_name}
    error: Exception = type(qualified or "TaskError", (TaskError,), dict(made))(text)
    return error
