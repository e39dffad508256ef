"""The submission of drafts: write them in one transaction, announce them after the commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fairlead.backends.sql.periodic import Advance, PeriodicStore
from fairlead.core.fair.stored_order import stored_order
from fairlead.declare.handle import TaskHandle
from fairlead.declare.handler import entered, overridden
from fairlead.declare.task import Draft, Submission, encode, joined_connection
from fairlead.model import NewTask, Submitted
from fairlead.ports.notification import Notification, joined
from fairlead.ports.statements import Steps
from fairlead.submit.context import SubmitContext
from fairlead.submit.ordered import OrderedSubmission
from fairlead.submit.transaction import Transaction, is_of_django
from fairlead.submit.writer import BLOCKING, ON_LOOP, Writer, run_now

log = logging.getLogger("fairlead.periodic")

BULK = 1000
"""Number of tasks per piece. A submit of more tasks, in a transaction of our own, is encoded and
written piece by piece."""

_NO_HOOKS = nullcontext()


class Submitter:
    """Submits of one application. Each submit is one transaction: the caller's if the drafts carry
    a connection."""

    def __init__(self, context: SubmitContext) -> None:
        self._context = context
        self.ordered = OrderedSubmission(context)

    def submit(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit the drafts. Raise InvalidTask before anything is written."""
        return run_now(self._submit(drafts, BLOCKING))

    async def submit_async(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit the drafts from asynchronous code. Raise InvalidTask before anything is
        written."""
        if drafts and is_of_django(joined_connection(drafts)):
            from fairlead.submit import django_commit

            return await django_commit.call_in_thread(self.submit, drafts)
        return await self._submit(drafts, ON_LOOP)

    async def submit_slots(self, drafts: Sequence[Draft], advance: Advance) -> bool:
        """Submit the drafts of due slots and advance the record of the periodic task, both or
        neither. Return False if the record has changed."""
        if not drafts:
            store = self._context.connector.sql_store
            steps = PeriodicStore(store).submission(advance, [])
            return (await ON_LOOP.write(store.database, steps)) is not None
        handles = await self._submit(drafts, ON_LOOP, advance)
        for earlier in [each.id for each in handles if not each.is_new]:
            log.info("slot skipped: its task is unfinished", extra={"task_id": earlier})
        return bool(handles)

    def transaction(self, connection: Any) -> Transaction:
        """Return a transaction on this connection, which announces the tasks submitted in it. Make
        the tables of a new SQLite file first."""
        context = self._context
        _ = context.connector.cluster  # nobody else can create tables while a transaction is open
        return Transaction(connection, context.waiting, context.connector.announce)

    async def _submit(
        self, drafts: Sequence[Draft], writer: Writer, advance: Advance | None = None
    ) -> list[TaskHandle]:
        """Submit the drafts, and advance the record of their periodic task if there is one. Return
        the handles in the order of the drafts; none if that record has changed."""
        if not drafts:
            return []
        submission, hooks = self._intercepted(drafts)
        with hooks:
            drafts = submission.drafts
            connection = joined_connection(drafts)
            if self.ordered.takes(drafts):
                handles = await self.ordered.append(drafts, connection, writer, advance)
            else:
                handles = await self._insert(drafts, connection, writer, advance)
            submission.handles = handles
        return handles

    def _intercepted(
        self, drafts: Sequence[Draft]
    ) -> tuple[Submission, AbstractContextManager[object]]:
        """Return the drafts as interceptors leave them, and what these have around the submit."""
        interceptors = self._context.hooks.interceptors
        if not interceptors:
            return Submission(drafts), _NO_HOOKS
        for submitting in overridden(interceptors, "submitting"):
            drafts = [submitting(draft) for draft in drafts]
        submission = Submission(drafts)
        return submission, entered(overridden(interceptors, "submission"), submission)

    async def _insert(
        self, drafts: Sequence[Draft], connection: Any, writer: Writer, advance: Advance | None
    ) -> list[TaskHandle]:
        """Insert the tasks of the drafts into the task store, and announce them."""
        context, connector = self._context, self._context.connector
        store = connector.store

        order = self._order(drafts)
        stored = drafts if order is None else [drafts[position] for position in order]

        tasks: list[NewTask] = []
        if connection is None and len(drafts) > BULK:
            pieces = store.bulk(self._encoded_pieces(stored, tasks))
            submitted, notifications = await writer.write(store.database, pieces)
            notification: Notification | None = joined(notifications)
        else:
            tasks = self._encode(stored)
            steps: Steps[tuple[list[Submitted], Notification | None] | None]
            if advance is None:
                steps = store.submission(tasks)
            else:
                steps = PeriodicStore(connector.sql_store).submission(advance, tasks)
            written = await writer.write(store.database, steps, connection)
            if written is None:
                return []
            submitted, notification = written
        notification = connector.channel.carrying(notification, tasks, submitted)

        if order is not None:
            back = sorted(range(len(order)), key=order.__getitem__)
            tasks = [tasks[place] for place in back]
            submitted = [submitted[place] for place in back]

        context.announce(notification, connection)
        context.observer.submitted(tasks)
        own_notification = None if connection is None else notification
        handlers = context.declared.handlers
        return [
            TaskHandle(connector, id, is_new, task.keep_result, own_notification, handlers)
            for task, (id, is_new, _) in zip(tasks, submitted, strict=True)
        ]

    def _order(self, drafts: Sequence[Draft]) -> list[int] | None:
        """Return the positions of the drafts in the order to store their tasks; None for that of
        the drafts. Only a fair queue leaves the order open."""
        if len(drafts) == 1:
            return None
        declared = self._context.declared.queues
        queues = {draft.handler.queue for draft in drafts}
        if any(declared[queue].order == "fifo" for queue in queues):
            return None
        return stored_order([draft.options for draft in drafts])

    def _encoded_pieces(
        self, drafts: Sequence[Draft], tasks: list[NewTask]
    ) -> Iterator[list[NewTask]]:
        """Yield the tasks of the drafts piece by piece; each piece is added to `tasks` too."""
        for start in range(0, len(drafts), BULK):
            piece = self._encode(drafts[start : start + BULK])
            tasks.extend(piece)
            yield piece

    def _encode(self, drafts: Sequence[Draft]) -> list[NewTask]:
        context = self._context
        now = context.hooks.clock.now()
        return encode(drafts, context.declared.partitions, now, context.hooks.payload_limit)
