"""Results of tasks that ran at the call."""

from __future__ import annotations

from typing import Any

from fairlead.contrib.celery import states
from fairlead.contrib.celery.async_result import AsyncResult
from fairlead.contrib.celery.exceptions import TaskError
from fairlead.model import TaskRecord


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

    @property
    def children(self) -> None:
        """None, as for a run at the call in Celery."""

    def record(self) -> TaskRecord | None:
        return None

    @property
    def state(self) -> str:
        """State in which the run ended."""
        return self._state

    def ready(self) -> bool:
        """Return True: the run has ended, also one that was ignored or rejected."""
        return True

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

    def _waited(self, timeout: float | None, propagate: bool) -> Any:
        if self._state not in states.PROPAGATE_STATES or not propagate:
            return self._result
        error = self._result
        raise error if isinstance(error, BaseException) else TaskError(str(error))

    def revoke(
        self, terminate: bool = False, signal: Any = None, wait: bool = False, **options: Any
    ) -> None:
        """Do nothing: the task has ended."""
