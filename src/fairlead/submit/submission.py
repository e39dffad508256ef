"""The submission of drafts: write them in one transaction, announce them after the commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairlead.core.fair.stored_order import stored_order
from fairlead.declare.handle import TaskHandle
from fairlead.declare.handler import entered, overridden
from fairlead.declare.task import Draft, Submission, encode, joined_connection
from fairlead.model import NewTask, Submitted
from fairlead.ports.notification import Notification, joined
from fairlead.ports.periodic_store import Advance
from fairlead.submit.context import SubmitContext
from fairlead.submit.ordered import OrderedSubmission
from fairlead.submit.plan import Plan, PlannedWrite, carry_out, carry_out_async
from fairlead.submit.transaction import Transaction, is_of_django

log = logging.getLogger("fairlead.periodic")

BULK = 1000
"""Number of tasks per piece. A submit of more tasks, in a transaction of our own, is encoded and
written piece by piece."""


class Submitter:
    """Submits of one application. Each submit is one transaction: the caller's if the drafts carry
    a connection."""

    def __init__(self, context: SubmitContext) -> None:
        self._context = context
        self.ordered = OrderedSubmission(context)

    def submit(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit the drafts. Raise InvalidTask before anything is written."""
        return carry_out(self._submission(drafts))

    async def submit_async(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit the drafts from asynchronous code. Raise InvalidTask before anything is
        written."""
        if drafts and is_of_django(joined_connection(drafts)):
            from fairlead.submit import django_commit

            return await django_commit.call_in_thread(self.submit, drafts)
        return await carry_out_async(self._submission(drafts))

    async def submit_slots(self, drafts: Sequence[Draft], advance: Advance) -> bool:
        """Submit the drafts of due slots and advance the record of the periodic task, both or
        neither. Return False if the record has changed."""
        return await carry_out_async(self._slots(drafts, advance))

    def transaction(self, connection: Any) -> Transaction:
        """Return a transaction on this connection, which announces the tasks submitted in it."""
        context = self._context
        return Transaction(
            connection, context.transactions, lambda found: context.announce(found, None)
        )

    def _slots(self, drafts: Sequence[Draft], advance: Advance) -> Plan[bool]:
        store, channel = self._context.connector.sql_store, self._context.connector.channel
        if not drafts:
            steps = store.periodics.submission(advance, [])
            return (yield PlannedWrite(store.database, steps)) is not None
        with self._intercepted(drafts) as submission:
            if self.ordered.takes(submission.drafts):
                handles = yield from self.ordered.slots(submission.drafts, advance)
                submission.handles = handles or ()
                return handles is not None
            tasks = self._encode(submission.drafts)
            written = yield PlannedWrite(store.database, store.periodics.submission(advance, tasks))
            if written is None:
                return False
            submitted, notification = written
            notification = channel.carrying(notification, tasks, submitted)
            submission.handles = self._announced(tasks, submitted, notification, None)
            for earlier in [each.id for each in submission.handles if not each.is_new]:
                log.info("slot skipped: its task is unfinished", extra={"task_id": earlier})
            return True

    def _submission(self, drafts: Sequence[Draft]) -> Plan[list[TaskHandle]]:
        if not drafts:
            return []
        if not self._context.hooks.interceptors:
            return (yield from self._write(drafts))
        with self._intercepted(drafts) as submission:
            submission.handles = handles = yield from self._write(submission.drafts)
            return handles

    @contextmanager
    def _intercepted(self, drafts: Sequence[Draft]) -> Iterator[Submission]:
        interceptors = self._context.hooks.interceptors
        for submitting in overridden(interceptors, "submitting"):
            drafts = [submitting(draft) for draft in drafts]
        submission = Submission(drafts)
        with entered(overridden(interceptors, "submission"), submission):
            yield submission

    def _write(self, drafts: Sequence[Draft]) -> Plan[list[TaskHandle]]:
        connection = joined_connection(drafts)
        if self.ordered.takes(drafts):
            return (yield from self.ordered.submission(drafts, connection))
        order = self._order(drafts)
        stored = drafts if order is None else [drafts[position] for position in order]
        tasks, submitted, notification = yield from self._insert(stored, connection)
        if order is not None:
            back = sorted(range(len(order)), key=order.__getitem__)
            tasks = [tasks[place] for place in back]
            submitted = [submitted[place] for place in back]
        return self._announced(tasks, submitted, notification, connection)

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

    def _announced(
        self,
        tasks: Sequence[NewTask],
        submitted: Sequence[Submitted],
        notification: Notification,
        connection: Any,
    ) -> list[TaskHandle]:
        context = self._context
        context.announce(notification, connection)
        context.observer.submitted(tasks)
        own_notification = None if connection is None else notification
        handlers = context.declared.handlers
        return [
            TaskHandle(context.connector, id, is_new, task.keep_result, own_notification, handlers)
            for task, (id, is_new, _) in zip(tasks, submitted, strict=True)
        ]

    def _insert(
        self, drafts: Sequence[Draft], connection: Any
    ) -> Plan[tuple[list[NewTask], list[Submitted], Notification]]:
        connector = self._context.connector
        store = connector.store
        if connection is None and len(drafts) > BULK:
            tasks: list[NewTask] = []
            steps = store.bulk(self._encoded_pieces(drafts, tasks))
            submitted, notifications = yield PlannedWrite(store.database, steps)
            notification = joined(notifications)
        else:
            tasks = self._encode(drafts)
            submitted, notification = yield PlannedWrite(
                store.database, store.submission(tasks), connection
            )
        return tasks, submitted, connector.channel.carrying(notification, tasks, submitted)

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
