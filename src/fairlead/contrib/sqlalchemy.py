"""SQLAlchemy and SQLModel: submits in the transaction of a session or connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from fairlead.declare.handle import TaskHandle
from fairlead.declare.task import Task
from fairlead.errors import InvalidTask

P = ParamSpec("P")


class Submitter:
    """Submits tasks in the transaction of one session: they exist if and only if it commits.

    `session`: a Session, AsyncSession, scoped_session, async_scoped_session, Connection or
    AsyncConnection of SQLAlchemy, or a session of SQLModel, of the migrated database
    of the App.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self._has_ended: Callable[[], bool] = lambda: False
        """Return whether nobody commits the session any more."""

    def submit(self, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle:
        """Submit one task with these arguments, as `task.submit` does. Other options come by
        `task.options(...)`. Raises InvalidTask after the end of the request that has the
        session."""
        self._check()
        return task.options(connection=self.session).submit(*args, **kwargs)

    async def submit_async(
        self, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle:
        """Submit from asynchronous code, as `submit` does, also with asynchronous sessions."""
        self._check()
        return await task.options(connection=self.session).submit_async(*args, **kwargs)

    def _check(self) -> None:
        if self._has_ended():
            raise InvalidTask(
                "the session of this request has ended, so nothing would commit the task: in a"
                " background task or a streamed response, use `task.submit(...)`, or a session of"
                " its own"
            )
