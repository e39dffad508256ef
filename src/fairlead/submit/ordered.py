"""Submits to ordered queues: append to the queue's log, in the caller's transaction if there is
one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from fairlead.declare.handle import OrderedHandle, TaskHandle
from fairlead.declare.periodic import Periodic
from fairlead.declare.task import Draft, encode
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.model import ScheduledTask
from fairlead.ordered.accept import Acceptance
from fairlead.ports.notification import Notification
from fairlead.ports.task_log import Submit, TaskLog
from fairlead.ports.task_records import TaskFilter
from fairlead.submit.context import SubmitContext
from fairlead.submit.plan import Plan, PlannedWait, PlannedWrite, carry_out


class OrderedSubmission:
    """Submits to the ordered queues of one application."""

    def __init__(self, context: SubmitContext) -> None:
        self._context = context
        self._acceptance = Acceptance(context.declared.queues)
        self._settled: dict[str, int] = {}
        """Number of partitions, by queue, of the queues that were compared with the store."""

    def takes(self, drafts: Sequence[Draft]) -> bool:
        """Return whether the drafts are for ordered queues. Raise InvalidTask when only some are,
        because the two kinds cannot be submitted together."""
        kinds = {self._is_ordered(draft.handler.queue) for draft in drafts}
        if len(kinds) > 1:
            raise InvalidTask(
                "one bulk submit has tasks of ordered queues or of other queues: submit the two"
                " kinds separately"
            )
        return kinds.pop()

    def check(self, queues: Collection[str], periodics: Iterable[Periodic]) -> bool:
        """Check the ordered queues before a node serves them; return whether there are any. Raise
        ConfigurationError as `_settle` does, and for a declaration that could never run there."""
        carry_out(self._settle(queues, None))
        for periodic in periodics:
            if self._is_ordered(periodic.handler.queue):
                raise ConfigurationError(
                    f"periodic task {periodic.handler.name!r}: its queue is ordered; declare the"
                    " periodic task in another queue, and let its handler submit tasks to this one"
                )
        ordered = [name for name in queues if self._is_ordered(name)]
        if not ordered:
            return False
        store = self._context.connector.sql_store
        for name in ordered:
            if store.database.read_now(store.tasks(TaskFilter(queue=name), 1)):
                raise ConfigurationError(
                    f"queue {name!r} holds tasks from before it was ordered, which would never run:"
                    " cancel them, or finish them with a worker that declares the queue as before;"
                    " or give the ordered queue another name"
                )
        return True

    def submission(self, drafts: Sequence[Draft], connection: Any) -> Plan[list[TaskHandle]]:
        """Append the tasks to the log, once the log has room for them. Raise InvalidTask before
        anything is written, StoreUnavailable if the log has no room in time."""
        context = self._context
        yield from self._settle({draft.handler.queue for draft in drafts}, connection)
        log = self._log(connection)
        if (room := log.room()) is not None:
            yield PlannedWait(room)
        entries = self._entries(drafts)
        notification = Notification(log=sorted({entry.task.queue for entry in entries}))
        if log.joins_transactions:
            database = context.connector.sql_store.database
            yield PlannedWrite(database, log.appending(entries), connection)
            context.announce(notification, connection)
            appended: Future[None] = Future()
            appended.set_result(None)
        else:
            appended = log.append(entries)
        context.observer.submitted([entry.task for entry in entries])
        own_notification = None if connection is None else notification
        return [
            OrderedHandle(
                context.connector,
                entry.task.id,
                True,
                False,
                own_notification,
                appended,
                ScheduledTask.of(entry.task).key,
            )
            for entry in entries
        ]

    def _settle(self, queues: Collection[str], connection: Any) -> Plan[None]:
        """Settle the number of partitions of these queues.

        The first application that uses an ordered queue fixes the number for good, because an
        ordering key must not move to another partition while it has tasks in both. Raise
        ConfigurationError for another number, NotSupported where tasks are not in a SQL database.
        """
        wanted = {
            name: self._context.declared.queues[name].partitions
            for name in queues
            if self._is_ordered(name)
        }
        if wanted.items() <= self._settled.items():
            return
        store = self._context.connector.sql_store
        # Read without waiting for other writers: most queues are registered already.
        known = store.database.read_now(store.queue_settings())
        missing = {name: count for name, count in wanted.items() if name not in known}
        if not store.database.has_one_writer:
            # Otherwise all changes of settings would wait for the end of the caller's transaction.
            connection = None
        if missing:
            known |= yield PlannedWrite(store.database, store.registration(missing), connection)
        for name, count in wanted.items():
            if known[name].partitions != count:
                raise ConfigurationError(
                    f"queue {name!r} has {known[name].partitions} partitions, a number that an"
                    " ordered queue cannot change: declare the queue with"
                    f" partitions={known[name].partitions}, or under another name"
                )
        if connection is None or not missing:
            self._settled |= wanted

    def _log(self, connection: Any) -> TaskLog:
        log = self._context.connector.connections.log
        assert log is not None  # every SQL backend has a log
        if connection is not None and not log.joins_transactions:
            raise InvalidTask(
                f"the log of ordered queues is {log.location}: it cannot be part of your"
                " transaction"
            )
        return log

    def _entries(self, drafts: Sequence[Draft]) -> list[Submit]:
        context = self._context
        now = context.hooks.clock.now()
        tasks = encode(drafts, context.declared.partitions, now, context.hooks.payload_limit)
        return self._acceptance.entries(tasks, now)

    def _is_ordered(self, queue: str) -> bool:
        return self._context.declared.queues[queue].is_ordered
