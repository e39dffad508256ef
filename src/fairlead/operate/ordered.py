"""Commands for ordered queues: show waiting tasks and partitions, end a stuck task."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Sequence

import msgspec

from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.core.sharding.partitions import partition_of
from fairlead.declare.queue import MOST_PARTITIONS
from fairlead.engine.leases import lease_of, owners_of
from fairlead.errors import InvalidTask, UnknownQueue
from fairlead.model import BEFORE_ALL, PartitionKey, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.operate.audit import Recorder
from fairlead.operate.changes import A_PERSON
from fairlead.operate.context import OperateContext
from fairlead.operate.store.audit import AuditOutcome
from fairlead.ordered.accept import check
from fairlead.ordered.partition import STALE_SECONDS
from fairlead.ordered.repartition import MoveContext, Repartition, Repartitioned
from fairlead.ports.notification import Notification
from fairlead.ports.schedule_store import ScheduleStatus
from fairlead.ports.task_log import Drop, Entry

_ALL = TaskKey(1 << 62, "", "")
_PAGE = 1000


class OrderedPartitionView(msgspec.Struct, frozen=True):
    """One partition of an ordered queue."""

    partition: int
    owner: str | None
    lag: int
    """Entries of the log that are not in the schedule yet."""
    unfinished: int
    stale: int
    """Tasks due longer ago than STALE_SECONDS."""
    oldest: TaskKey | None
    loaded: int
    in_flight: int
    look_ahead: float
    """Seconds from now up to which tasks are in memory, by the owner's last record; 0 while the
    owner catches up."""
    reloads: int
    """Number of failures in a row."""
    trouble: str | None
    unreadable: int
    """Stored tasks that cannot be read, by the owner's last record."""
    moving_to: int | None = None
    """Number of partitions to which the queue is being moved; None if no move is under way."""


class RepartitionPlan(msgspec.Struct, frozen=True):
    """Effects of a move to another number of partitions."""

    queue: str
    before: int
    """Number of partitions now."""
    partitions: int
    """Number of partitions after the move."""
    tasks: int
    """Unfinished tasks to move."""
    unfinished: int
    """All unfinished tasks in the schedule."""
    entries: int
    """Entries of the log."""
    workers: list[str]
    """Workers, or other moves, that own a partition and are to be stopped before."""


class OrderedManagement:
    """Commands for the ordered queues. Raise UnknownQueue for a queue that no worker has served and
    no submit has used."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._log, self._store = context.connector.ordered_stores
        self._cluster = context.cluster

    async def tasks(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        partition: int | None = None,
        limit: int = 100,
    ) -> list[ScheduledTask]:
        """Return unfinished tasks in the schedule, earliest first, at most `limit`. Raise
        InvalidTask for a partition that does not exist, or that cannot hold the ordering key."""
        partitions: Sequence[int] = range(self._partitions(queue))
        values.whole("limit", limit, 0, values.MOST_ROWS, InvalidTask)
        if partition is not None:
            what = f"partition of queue {queue!r}"
            values.whole(what, partition, 0, len(partitions) - 1, InvalidTask)
        if ordering_key is not None:
            values.text("ordering_key", ordering_key, error=InvalidTask)
            its_own = partition_of(ordering_key, 0, len(partitions))
            if partition not in (None, its_own):
                raise InvalidTask(
                    f"ordering key {ordering_key!r} is in partition {its_own}, not {partition}:"
                    " name one of the two"
                )
            partitions = [its_own]
        elif partition is not None:
            partitions = [partition]
        found: list[ScheduledTask] = []
        for number in partitions:
            key = PartitionKey(queue, number)
            page = await self._store.read(key, BEFORE_ALL, _ALL, limit, ordering_key)
            found += page.tasks
        return sorted(found, key=lambda scheduled: scheduled.key)[:limit]

    async def unread(self) -> dict[str, int]:
        """Return how many entries of the log are not in the schedule yet, by queue that has any.
        Raise StoreUnavailable."""
        names = self._cluster.database.read_now(self._cluster.queue_settings())
        lags = {name: sum((await self._log.lag(name)).values()) for name in names}
        return {name: lag for name, lag in lags.items() if lag}

    def drop(self, queue: str, key: TaskKey, *, actor: str = A_PERSON) -> None:
        """End a task, whatever its state, by a message to its owner through the log.

        The task is then completed: it does not run again, and the next task of its ordering key
        runs. A running handler is stopped; one in a thread continues, and its result is
        dropped. Raise InvalidTask for a key that no task can have."""
        if not isinstance(key, TaskKey):
            raise InvalidTask(f"key {values.brief(key)}: use a TaskKey")
        values.text("ordering_key", key.ordering_key, error=InvalidTask)
        actor = values.text("actor", actor, may_be_empty=True, error=InvalidTask)
        entry: Entry = Drop(
            queue,
            partition_of(key.ordering_key, 0, self._partitions(queue)),
            key,
            actor,
            self._context.clock.now(),
        )
        check(entry)
        recorder = Recorder(self._context)
        recorder.note(
            recorder.entry(
                actor,
                "drop_ordered",
                outcome=AuditOutcome.ASKED,
                queue=queue,
                subject=f"{key.ordering_key} at {key.run_at}, {key.unique_key}",
            )
        )
        self._log.append([entry]).result()
        self._context.channel.announce(Notification(log=[queue]))

    async def check_log(self, queue: str) -> Sequence[str]:
        """Check that the log of the queue belongs to this application and loses no entry; return
        what people should know about it. Raise ConfigurationError."""
        return await self._log.check(values.name("queue", queue, error=InvalidTask))

    async def repartition(
        self, queue: str, partitions: int, report: Callable[[str], None] = lambda text: None
    ) -> Repartitioned:
        """Move the tasks of the queue to another number of partitions; see
        `fairlead.ordered.repartition`. `report`: callback with the progress. Raise
        ConfigurationError while workers serve the queue, InvalidTask for a number that no queue can
        have, StoreUnavailable if the move was cut off; run another one then."""
        self._check_ordered(queue, partitions)
        if not callable(report):
            raise InvalidTask(f"report {values.brief(report)}: use a function of a text")
        tasks = self._cluster
        database = tasks.database

        async def version() -> int:
            return (await database.read(tasks.queue_settings()))[queue].version

        context = MoveContext(
            name=f"repartition-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            log=self._log,
            store=self._store,
            coordinator=self._context.coordinator,
            clock=self._context.clock,
            lease_of=lease_of,
            version=version,
            resize=lambda read: database.run_async(tasks.resizing(queue, partitions, read)),
            report=report,
        )
        return await Repartition(queue, partitions, context).run()

    async def repartition_plan(self, queue: str, partitions: int) -> RepartitionPlan:
        """Return what a move of the queue to this number of partitions would do, by a read of all
        its tasks."""
        before = self._check_ordered(queue, partitions)
        statuses = await self._store.statuses(queue, 0)
        tasks = 0
        for number in statuses:
            after = BEFORE_ALL
            key = PartitionKey(queue, number)
            while rows := (await self._store.read(key, after, _ALL, _PAGE)).tasks:
                tasks += sum(
                    partition_of(row.key.ordering_key, 0, partitions) != number for row in rows
                )
                after = rows[-1].key
        owners = owners_of(await self._context.coordinator.owners())
        return RepartitionPlan(
            queue,
            before,
            partitions,
            tasks,
            sum(found.unfinished for found in statuses.values()),
            sum((await self._log.lag(queue)).values()),
            sorted({owner for key, owner in owners.items() if key.queue == queue}),
        )

    async def status(self, queue: str) -> list[OrderedPartitionView]:
        """Return every partition that has or had an owner, or has entries in the log."""
        self._partitions(queue)
        now = self._context.clock.now()
        statuses = await self._store.statuses(queue, now - round(STALE_SECONDS * MICROS))
        lags = await self._log.lag(queue)
        owners = owners_of(await self._context.coordinator.owners())
        unowned = ScheduleStatus(0, ScheduleRecord(), 0, 0, None)
        return [
            _view(
                number,
                owners.get(PartitionKey(queue, number)),
                lags.get(number, 0),
                statuses.get(number, unowned),
                now,
            )
            for number in sorted({*statuses, *lags})
        ]

    def _check_ordered(self, queue: str, partitions: int) -> int:
        """Return the number of partitions of an ordered queue. Raise InvalidTask for another queue,
        and for a new number that no queue can have."""
        declared = self._context.ordered_queues
        if values.name("queue", queue, error=InvalidTask) not in declared:
            known = ", ".join(declared) or "none"
            raise UnknownQueue(
                f"no ordered queue {queue!r} is declared; declared: {known}."
                " Other queues take another number of partitions at the start of a worker"
            )
        values.whole("partitions", partitions, 1, MOST_PARTITIONS, InvalidTask)
        return self._partitions(queue)

    def _partitions(self, queue: str) -> int:
        known = self._cluster.database.read_now(self._cluster.queue_settings())
        if values.name("queue", queue, error=InvalidTask) not in known:
            raise UnknownQueue(
                f"no queue named {queue!r} is known; known: {', '.join(sorted(known)) or 'none'}"
            )
        return known[queue].partitions


def _view(
    number: int, owner: str | None, lag: int, status: ScheduleStatus, now: int
) -> OrderedPartitionView:
    record = status.record
    return OrderedPartitionView(
        number,
        owner,
        lag,
        status.unfinished,
        status.stale,
        status.oldest,
        record.loaded,
        record.in_flight,
        max(0.0, (record.read_through.run_at - now) / MICROS),
        record.reloads,
        record.trouble,
        record.unreadable,
        record.partitions if record.is_moving else None,
    )
