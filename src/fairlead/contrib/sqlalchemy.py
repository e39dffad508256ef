"""SQLAlchemy and SQLModel: submits in the transaction of a session or connection."""

from __future__ import annotations

from typing import Any, ParamSpec

from fairlead.declare.handle import TaskHandle
from fairlead.declare.task import Task

P = ParamSpec("P")


class Submitter:
    """Submits tasks in the transaction of one session: they exist if and only if it commits.

    `session`: a Session, AsyncSession, scoped_session, async_scoped_session, Connection or
    AsyncConnection of SQLAlchemy, or a session of SQLModel, of the migrated database
    of the App.
    """

    def __init__(self, session: Any) -> None:
        self.session = session

    def submit(self, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle:
        """Submit one task with these arguments, as `task.submit` does. Other options come by
        `task.options(...)`."""
        return task.options(connection=self.session).submit(*args, **kwargs)

    async def submit_async(
        self, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle:
        """Submit from asynchronous code, also with asynchronous sessions."""
        return await task.options(connection=self.session).submit_async(*args, **kwargs)
