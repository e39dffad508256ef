"""Submits to ordered queues: into their log, for good or in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fairlead.core.policies.retry import UNTIL_DONE, RetryPolicy
from fairlead.declare.handler import Handler
from fairlead.declare.queue import Queue
from fairlead.declare.task import Draft, encode
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.model import ScheduledTask
from fairlead.ordered.accept import Acceptance
from fairlead.ports.notification import Wake
from fairlead.ports.task_log import Submit, TaskLog
from fairlead.ports.task_records import TaskFilter
from fairlead.submit.handle import OrderedHandle, TaskHandle

if TYPE_CHECKING:
    from fairlead.app import App


def fit(handler: Handler, queues: Mapping[str, Queue], default: RetryPolicy) -> None:
    """What is different for a handler of an ordered queue: it retries for ever, unless it says
    otherwise than `default`. Raises ConfigurationError for what does not go together."""
    if handler.queue not in queues or not queues[handler.queue].is_ordered:
        return
    for is_set, what in (
        (handler.transactional, "transactional=True"),
        (handler.keep_result, "keep_result=True"),
    ):
        if is_set:
            raise ConfigurationError(
                f"task {handler.name!r}: {what} does not go with the ordered queue"
                f" {handler.queue!r}; use another queue"
            )
    if handler.retry is default:
        handler.retry = UNTIL_DONE


class OrderedSubmission:
    """One per application."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._acceptance = Acceptance(app.queues)
        self._settled: dict[str, int] = {}
        """Queues whose number of partitions is known to be what the store says."""

    def takes(self, drafts: Sequence[Draft]) -> bool:
        """They are for ordered queues. Raises InvalidTask when some are and others not: they would
        not be submitted together."""
        kinds = {self._app.queues[draft.handler.queue].is_ordered for draft in drafts}
        if len(kinds) > 1:
            raise InvalidTask(
                "one bulk submit goes to ordered queues or to others: submit them apart"
            )
        return kinds.pop()

    def settle_partitions(self, queues: Collection[str], connection: Any = None) -> bool:
        """The first to use an ordered queue says how many partitions it has, for good: an ordering
        key must not move from one to another while it has tasks in both. False: none of these is
        ordered. Raises ConfigurationError for another number, NotSupported where tasks do not live
        in a SQL database."""
        app = self._app
        wanted = {
            name: app.queues[name].partitions for name in queues if app.queues[name].is_ordered
        }
        if not wanted or wanted.items() <= self._settled.items():
            return bool(wanted)
        store = app.sql_store
        known = store.database.look(store.queue_settings())
        if missing := {name: count for name, count in wanted.items() if name not in known}:
            steps = store.registration(missing)
            # In the caller's transaction: on SQLite, a second one would wait for that one for ever.
            known |= (
                store.database.run(steps)
                if connection is None
                else store.database.join(connection, steps)
            )
        for name, count in wanted.items():
            if known[name].partitions != count:
                raise ConfigurationError(
                    f"queue {name!r} has {known[name].partitions} partitions, and ordered queues"
                    f" keep theirs: declare it with partitions={known[name].partitions}, or under"
                    " another name"
                )
        if connection is None:
            self._settled |= wanted
        return True

    def check(self, queues: Collection[str]) -> bool:
        """The same before a node serves these. Raises ConfigurationError also for what would never
        run there."""
        app = self._app
        if not self.settle_partitions(queues):
            return False
        for periodic in app.periodics:
            if app.queues[periodic.handler.queue].is_ordered:
                raise ConfigurationError(
                    f"periodic task {periodic.handler.name!r}: its queue is ordered; have it in"
                    " another queue, and let it submit tasks to this one"
                )
        store = app.sql_store
        for name in queues:
            if app.queues[name].is_ordered and store.database.look(
                store.tasks(TaskFilter(queue=name), 1)
            ):
                raise ConfigurationError(
                    f"queue {name!r} holds tasks from before it was ordered, which would never run:"
                    " let a worker finish them that declares it as it was, or cancel them; or give"
                    " the ordered queue another name"
                )
        return True

    def submit(self, drafts: Sequence[Draft], connection: Any) -> list[TaskHandle]:
        """Into the log. Raises InvalidTask, and then nothing is there."""
        self.settle_partitions({draft.handler.queue for draft in drafts}, connection)
        entries, log, wake = self._entries(drafts, connection)
        appended: Future[None] = Future()
        database = self._app.sql_store.database
        if connection is not None:
            database.join(connection, log.appending(entries))
            self._app.submitter.announce_later(connection, wake)
            appended.set_result(None)
            return self._handles(entries, appended, wake)
        if not log.joins_transactions:
            return self._handles(entries, log.append(entries), None)
        database.run(log.appending(entries))
        self._app.channel.announce(wake)
        appended.set_result(None)
        return self._handles(entries, appended, None)

    async def submit_async(self, drafts: Sequence[Draft], connection: Any) -> list[TaskHandle]:
        """The same from asynchronous code. The first use of a queue looks at its partitions without
        waiting for others."""
        if connection is None:
            self.settle_partitions({draft.handler.queue for draft in drafts})
        entries, log, wake = self._entries(drafts, connection)
        appended: Future[None] = Future()
        database = self._app.sql_store.database
        if connection is not None:
            await database.join_async(connection, log.appending(entries))
            self._app.submitter.announce_later(connection, wake)
            appended.set_result(None)
            return self._handles(entries, appended, wake)
        if not log.joins_transactions:
            return self._handles(entries, log.append(entries), None)
        await database.run_async(log.appending(entries))
        self._app.channel.announce(wake)
        appended.set_result(None)
        return self._handles(entries, appended, None)

    def _entries(
        self, drafts: Sequence[Draft], connection: Any
    ) -> tuple[list[Submit], TaskLog, Wake]:
        app = self._app
        log = app.connections.log
        assert log is not None
        if connection is not None and not log.joins_transactions:
            raise InvalidTask(
                f"the log of ordered queues is {log.location}: it cannot be part of your"
                " transaction"
            )
        now = app.clock.now()
        partitions = {name: queue.partitions for name, queue in app.queues.items()}
        entries = self._acceptance.entries(encode(drafts, partitions, now, app.payload_limit), now)
        return entries, log, Wake(log=sorted({entry.task.queue for entry in entries}))

    def _handles(
        self, entries: Sequence[Submit], appended: Future[None], wake: Wake | None
    ) -> list[TaskHandle]:
        self._app.observer.submitted([entry.task for entry in entries])
        return [
            OrderedHandle(
                self._app,
                entry.task.id,
                True,
                False,
                wake,
                appended,
                ScheduledTask.of(entry.task).key,
            )
            for entry in entries
        ]
