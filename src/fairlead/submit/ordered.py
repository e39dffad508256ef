"""Submits to ordered queues: append to the queue's log, in the caller's transaction if there is
one."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from fairlead.backends.sql.periodic import Advance, PeriodicStore
from fairlead.declare.handle import OrderedHandle, TaskHandle
from fairlead.declare.periodic import Periodic
from fairlead.declare.task import Draft, encode
from fairlead.errors import ConfigurationError, InvalidTask, NotSupported, StoreUnavailable
from fairlead.model import ScheduledTask
from fairlead.ordered.accept import Acceptance
from fairlead.ordered.layout import LAYOUT_SECONDS, other_layout
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Steps
from fairlead.ports.task_log import Submit, TaskLog
from fairlead.ports.task_records import TaskFilter
from fairlead.submit.context import SubmitContext
from fairlead.submit.writer import BLOCKING, Writer, run_now

LOG_PATIENCE = 2.0
"""Seconds for which a node leaves a slot to the node that declared the periodic task last, if the
log is on another server: most slots are then appended once."""

OUTAGE_SECONDS = 60.0
"""Seconds between two attempts to read the number of partitions while the task store is away and
the log is elsewhere."""

logger = logging.getLogger("fairlead.ordered")


class OrderedSubmission:
    """Submits to the ordered queues of one application."""

    def __init__(self, context: SubmitContext) -> None:
        self._context = context
        self._acceptance = Acceptance(context.declared.ordered)
        self._partitions: dict[str, int] = {}
        """Numbers of partitions that the store has confirmed, by queue."""
        self._until = 0.0
        """Monotonic seconds from which they are read again."""

    def takes(self, drafts: Sequence[Draft]) -> bool:
        """Return whether the drafts are for ordered queues. Raise InvalidTask when only some are,
        because the two kinds cannot be submitted together."""
        queues = {draft.handler.queue for draft in drafts}
        ordered = queues & self._context.declared.ordered.keys()
        if ordered and ordered != queues:
            raise InvalidTask(
                "one bulk submit has tasks of ordered queues or of other queues: submit the two"
                " kinds separately"
            )
        return bool(ordered)

    def check(self, queues: Collection[str], periodics: Iterable[Periodic]) -> None:
        """Check the ordered queues before a node serves them, or submits periodic tasks to them.
        Raise ConfigurationError as `_settle` does."""
        submitted = {periodic.handler.queue for periodic in periodics}
        self._partitions.clear()  # a worker that starts must declare what the store has
        run_now(self._settle({*queues, *submitted}, None, BLOCKING))
        try:
            store = self._context.connector.sql_store
        except NotSupported:
            return  # no queue had tasks before it was ordered
        for name in self._context.declared.ordered.keys() & queues:
            if store.database.read_now(store.tasks(TaskFilter(queue=name), 1)):
                raise ConfigurationError(
                    f"queue {name!r} holds tasks from before it was ordered, which would never run:"
                    " cancel them, or finish them with a worker that declares the queue as before;"
                    " or give the ordered queue another name"
                )

    def groups(self, periodics: Iterable[Periodic]) -> list[tuple[list[Periodic], float]]:
        """Return the periodic tasks in groups, each with its patience in seconds (see
        `fairlead.engine.periodic.PeriodicTasks`). Those of ordered queues are a group, so that an
        outage of the log delays no other."""
        found: dict[float, list[Periodic]] = {}
        for periodic in periodics:
            found.setdefault(self._patience(periodic.handler.queue), []).append(periodic)
        return [(group, patience) for patience, group in found.items()]

    async def append(
        self, drafts: Sequence[Draft], connection: Any, writer: Writer, advance: Advance | None
    ) -> list[TaskHandle]:
        """Append the tasks to the log, once the log has room for them; with `advance`, advance the
        record of their periodic task too. Return no handles if that record has changed.

        A log elsewhere is in no transaction with the record: after a crash between the two, the
        slots are appended again, and the schedule drops them by their keys. Raise InvalidTask
        before anything is written, StoreUnavailable if the log has no room in time.
        """
        context, connector = self._context, self._context.connector
        log = self._log(connection)
        queues = sorted({draft.handler.queue for draft in drafts})
        await self._settle(queues, connection, writer)
        if (room := log.room()) is not None:
            await writer.wait(room)

        now = context.hooks.clock.now()
        partitions = ChainMap(self._partitions, context.declared.partitions)
        tasks = encode(drafts, partitions, now, context.hooks.payload_limit)
        accept = self._acceptance
        entries = accept.entries(tasks, now) if advance is None else accept.slots(tasks)

        appended = None if log.joins_transactions else log.append(entries)
        if advance is not None and appended is not None:
            await writer.wait(appended)
        if advance is not None or appended is None:
            steps = self._writing(log, entries, advance)
            if not await writer.write(connector.cluster.database, steps, connection):
                return []

        notification = Notification(log=queues)
        if log.joins_transactions:
            context.announce(notification, connection)
        context.observer.submitted([entry.task for entry in entries])
        return [
            OrderedHandle(
                connector,
                entry.task.id,
                True,
                False,
                None if connection is None else notification,
                _appended=appended,
                key=ScheduledTask.of(entry.task).key,
            )
            for entry in entries
        ]

    def _writing(
        self, log: TaskLog, entries: Sequence[Submit], advance: Advance | None
    ) -> Steps[bool]:
        """Advance the record, and append the entries to a log that joins transactions. Return False
        if the record has changed."""
        if advance is not None:
            store = self._context.connector.sql_store
            if (yield from PeriodicStore(store).submission(advance, [])) is None:
                return False
        if log.joins_transactions:
            yield from log.appending(entries)
        return True

    async def _settle(self, queues: Collection[str], connection: Any, writer: Writer) -> None:
        """Settle the number of partitions of these queues.

        The first application that uses an ordered queue fixes the number, because an ordering key
        must not move to another partition while it has tasks in both. Later, only a person changes
        the number (`fairlead.ordered.repartition`), so it is read again from time to time, and a
        process that runs meanwhile uses the new one. Raise OtherLayout for a declaration with
        another number, NotSupported where there can be no ordered queue.
        """
        ordered = self._context.declared.ordered
        names, settled = ordered.keys() & queues, self._partitions
        now = self._context.hooks.clock.monotonic()
        if not names or (now < self._until and names <= settled.keys()):
            return
        connector = self._context.connector
        _ = connector.ordered_stores  # raises NotSupported where there can be no ordered queue
        store = connector.cluster
        try:
            # Read without waiting for other writers: most queues are registered already.
            known = store.database.read_now(store.queue_settings())
        except StoreUnavailable:
            if not names <= settled.keys():
                raise
            # With the log in this store, the append fails too, or the next submit reads the number
            # again. Elsewhere, a worker corrects what comes to a wrong partition of the log.
            if not self._log(connection).joins_transactions:
                self._until = now + OUTAGE_SECONDS
            return
        missing = {name: ordered[name].partitions for name in names - known.keys()}
        if connection is not None and not connector.sql_store.database.has_one_writer:
            # Otherwise all changes of settings would wait for the end of the caller's transaction.
            connection = None
        if missing:
            registration = store.registration(missing)
            known |= await writer.write(store.database, registration, connection)
        for name in (names | settled.keys()) & known.keys():
            stored, declared = known[name].partitions, ordered[name].partitions
            if (before := settled.get(name)) is None and stored != declared:
                raise other_layout(name, stored, declared)
            if before not in (None, stored):
                logger.warning(
                    "an ordered queue was moved to another number of partitions: declare it so",
                    extra={"queue": name, "partitions": stored, "before": before},
                )
            if connection is None or name not in missing:
                settled[name] = stored
        self._until = now + LAYOUT_SECONDS

    def _log(self, connection: Any) -> TaskLog:
        log = self._context.connector.ordered_stores[0]
        if connection is not None and not log.joins_transactions:
            raise InvalidTask(
                f"the log of ordered queues is {log.location}: it cannot be part of your"
                " transaction"
            )
        return log

    def _patience(self, queue: str) -> float:
        """Return the seconds for which a periodic task of this queue waits for the log."""
        if queue not in self._context.declared.ordered or self._log(None).joins_transactions:
            return 0.0
        return LOG_PATIENCE
