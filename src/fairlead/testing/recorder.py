"""The recorder of a kit: which tasks were written, and with which exceptions their runs ended."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from fairlead.app import App
from fairlead.declare.current import CurrentTask
from fairlead.declare.handler import Handler, RunInterceptor
from fairlead.errors import Retry, Snooze, TaskFailed
from fairlead.model import Finish, NewTask, Outcome, State
from fairlead.ports.observer import ObservedRun, Observer

_ENDS_TESTS = (CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions of a handler that would end the whole test run."""


class Recorder(RunInterceptor):
    """Observes an application as its observer and as its outermost interceptor, and passes all
    events on to the observer that the application had. Thread-safe."""

    def __init__(self, app: App) -> None:
        self._observer: Observer = app.observer
        self._handlers: Mapping[str, Handler] = app.handlers
        self._connector = app.connector
        self._raised: dict[str, BaseException] = {}
        """Exceptions of the last runs, by the id of the task."""
        self.written: list[NewTask] = []
        """Tasks in the order of their submits, also those that did not commit."""
        self.committed: set[str] = set()
        """Ids of tasks that were seen in the store, from which a travel may have deleted them."""
        self.failures: dict[str, BaseException] = {}
        """Failures of tasks whose last run failed, by their ids."""
        self.moves = 0
        """Number of submits and of batches of ends, so that a reader sees whether any came."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._observer, name)

    def submitted(self, tasks: Sequence[NewTask]) -> None:
        """Keep the tasks that were written."""
        self.written.extend(tasks)
        self.moves += 1
        self._observer.submitted(tasks)

    def running(self, task: CurrentTask) -> AbstractContextManager[object]:
        """Keep the exception of a run."""
        return self._kept(task)

    @contextmanager
    def _kept(self, task: CurrentTask) -> Iterator[None]:
        try:
            with self._connector.running():
                yield
        except BaseException as error:
            self._raised[task.id] = error
            raise

    def finished(self, runs: Sequence[ObservedRun]) -> None:
        """Keep the failures of tasks, and forget those of tasks that are done."""
        self.moves += 1
        for run in runs:
            id = run.claimed.id
            self.committed.add(id)
            raised = self._raised.pop(id, None)
            if _is_failure(run.finish, raised):
                self.failures[id] = self._failure(run, raised)
            else:
                self.failures.pop(id, None)
        self._observer.finished(runs)

    def take_failures(self) -> list[BaseException]:
        """Return the failures in the order of their ends, and forget them."""
        found, self.failures = [*self.failures.values()], {}
        return found

    def _failure(self, run: ObservedRun, raised: BaseException | None) -> BaseException:
        claimed, finish = run.claimed, run.finish
        handler = self._handlers.get(run.trigger.name)
        # A timeout, a result that is not JSON or the end of a child process has no exception of
        # the handler here, or one that says less than the text in the store.
        if raised is None or type(raised) in _ENDS_TESTS or finish.outcome == Outcome.TIMED_OUT:
            kind = f"{finish.error_type}: " if finish.error_type else ""
            failure: BaseException = TaskFailed(
                f"{kind}{finish.error_text}", task_id=claimed.id, error_type=finish.error_type
            )
            failure.__cause__ = raised
        else:
            failure = raised
            if handler is not None:
                raised.__traceback__ = _from_handler(raised.__traceback__, handler)
        then = "it is tried again" if finish.next_state == State.WAITING else "no try is left"
        failure.add_note(
            f"raised by task {run.trigger.name!r}, id {claimed.id}, attempt {claimed.attempt};"
            f" {then}"
        )
        return failure


def _is_failure(finish: Finish, raised: BaseException | None) -> bool:
    """Return whether a run failed otherwise than by a `Retry` or `Snooze` of its handler that is
    granted, or by the end of its node."""
    if finish.outcome in (Outcome.DONE, Outcome.CANCELLED):
        return False
    return finish.next_state == State.ERROR or not isinstance(raised, Retry | Snooze)


def _from_handler(trace: TracebackType | None, handler: Handler) -> TracebackType | None:
    """Return the traceback from the function of the task on, without the frames of the node."""
    code = getattr(inspect.unwrap(handler.function), "__code__", None)
    found = trace
    while found is not None and found.tb_frame.f_code is not code:
        found = found.tb_next
    return trace if found is None else found
