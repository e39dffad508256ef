"""The submits of an application: to which kind of queue, in whose transaction, and who is told
after the commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlead.declare.current import current_task
from fairlead.declare.handler import entered, overridden
from fairlead.declare.task import Draft, Submission, encode, joined_connection
from fairlead.model import NewTask, Submitted
from fairlead.ports.notification import Wake, joined
from fairlead.submit.handle import TaskHandle
from fairlead.submit.ordered import OrderedSubmission
from fairlead.submit.transaction import Transaction, announce_after_commit

if TYPE_CHECKING:
    from fairlead.app import App

BULK = 1000
"""A submit of more tasks than this, in a transaction of our own, is encoded and written in pieces
of as many."""


class Submitter:
    """One per application."""

    def __init__(self, app: App, partitions: Mapping[str, int]) -> None:
        """`partitions`: of the queues, as they are declared."""
        self._app = app
        self._partitions = partitions
        self.ordered = OrderedSubmission(app)
        self.transactions: dict[int, Transaction] = {}
        """Open ones of `App.transaction`, by the identity of their connections."""

    def submit(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """In one transaction: the caller's when they carry a connection. Raises InvalidTask, and
        then nothing is there."""
        if not drafts:
            return []
        if not self._app.interceptors:
            return self._write(drafts)
        with self._intercepted(drafts) as submission:
            submission.handles = handles = self._write(submission.drafts)
            return handles

    async def submit_async(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """The same from asynchronous code."""
        if not drafts:
            return []
        if not self._app.interceptors:
            return await self._write_async(drafts)
        with self._intercepted(drafts) as submission:
            submission.handles = handles = await self._write_async(submission.drafts)
            return handles

    @contextmanager
    def _intercepted(self, drafts: Sequence[Draft]) -> Iterator[Submission]:
        for submitting in overridden(self._app.interceptors, "submitting"):
            drafts = [submitting(draft) for draft in drafts]
        submission = Submission(drafts)
        with entered(overridden(self._app.interceptors, "submission"), submission):
            yield submission

    def _write(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        connection = joined_connection(drafts)
        if self.ordered.takes(drafts):
            return self.ordered.submit(drafts, connection)
        store = self._app.store
        if connection is not None:
            tasks = self._encode(drafts)
            submitted, wake = store.database.join(connection, store.submission(tasks))
            wake = self._app.channel.carrying(wake, tasks, submitted)
            self.announce_later(connection, wake)
            return self._handles(tasks, submitted, wake)
        if len(drafts) <= BULK:
            tasks = self._encode(drafts)
            submitted, wake = store.database.run(store.submission(tasks))
            self._app.channel.announce(self._app.channel.carrying(wake, tasks, submitted))
            return self._handles(tasks, submitted, None)
        tasks = []

        def pieces() -> Iterator[list[NewTask]]:
            for start in range(0, len(drafts), BULK):
                piece = self._encode(drafts[start : start + BULK])
                tasks.extend(piece)
                yield piece

        submitted, wakes = store.database.run(store.bulk(pieces()))
        self._app.channel.announce(self._app.channel.carrying(joined(wakes), tasks, submitted))
        return self._handles(tasks, submitted, None)

    async def _write_async(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        connection = joined_connection(drafts)
        if self.ordered.takes(drafts):
            return await self.ordered.submit_async(drafts, connection)
        tasks = self._encode(drafts)
        steps = self._app.store.submission(tasks)
        if connection is None:
            submitted, wake = await self._app.store.database.run_async(steps)
            self._app.channel.announce(self._app.channel.carrying(wake, tasks, submitted))
            return self._handles(tasks, submitted, None)
        submitted, wake = await self._app.store.database.join_async(connection, steps)
        wake = self._app.channel.carrying(wake, tasks, submitted)
        self.announce_later(connection, wake)
        return self._handles(tasks, submitted, wake)

    def _encode(self, drafts: Sequence[Draft]) -> list[NewTask]:
        app = self._app
        tasks = encode(drafts, self._partitions, app.clock.now(), app.payload_limit)
        app.channel.check_tasks(tasks)
        return tasks

    def _handles(
        self, tasks: Sequence[NewTask], submitted: Sequence[Submitted], wake: Wake | None
    ) -> list[TaskHandle]:
        self._app.observer.submitted(tasks)
        return [
            TaskHandle(self._app, id, is_new, task.keep_result, wake)
            for task, (id, is_new, _) in zip(tasks, submitted, strict=True)
        ]

    def announce_later(self, connection: Any, wake: Wake) -> None:
        """After the commit of this connection's transaction: by whoever sees it first."""
        task = current_task()
        if task is not None and task.connection is connection:
            task.wakes.append(wake)
        elif (transaction := self.transactions.get(id(connection))) is not None:
            transaction.wakes.append(wake)
        else:
            announce_after_commit(connection, lambda: self._app.channel.announce(wake))
