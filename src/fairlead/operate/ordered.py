"""What operators do with ordered queues: look at what waits, end a task that is stuck, see how the
partitions are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.clock import MICROS
from fairlead.core.sharding.partitions import partition_of
from fairlead.engine.ownership import owners_of
from fairlead.errors import InvalidTask, UnknownQueue
from fairlead.model import BEFORE_ALL, PartitionKey, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.operate.context import OperateContext
from fairlead.ordered.accept import check
from fairlead.ordered.partition import STALE_SECONDS
from fairlead.ports.notification import Notification
from fairlead.ports.schedule_store import ScheduleStatus, hour_of
from fairlead.ports.task_log import Drop, Entry

_ALL = TaskKey(1 << 62, "", "")


class PartitionView(msgspec.Struct, frozen=True):
    """One partition of an ordered queue."""

    partition: int
    owner: str | None
    lag: int
    """Entries of the log that are not in the schedule yet."""
    unfinished: int
    stale: int
    """Due longer ago than STALE_SECONDS."""
    oldest: TaskKey | None
    oldest_hour: int | None
    """Its bucket: whole hours since 1970."""
    loaded: int
    in_flight: int
    look_ahead: float
    """Seconds from now up to which tasks are in memory, as its owner said last; negative: it is
    catching up."""
    reloads: int
    """How often in a row it was torn down and loaded anew."""
    trouble: str | None


class OrderedManagement:
    """See the module. Raises UnknownQueue for a queue that nobody has served or submitted to."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._tasks = context.sql_store
        connections = context.connector.connections
        log, schedule = connections.log, connections.schedule
        assert log is not None and schedule is not None  # where there are rows of tasks
        self._log = log
        self._store = schedule

    async def tasks(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        partition: int | None = None,
        limit: int = 100,
    ) -> list[ScheduledTask]:
        """Unfinished tasks that are in the schedule, the earliest first, at most `limit`. Raises
        InvalidTask for a partition that is not there, or in which the ordering key is not."""
        partitions: Sequence[int] = range(self._partitions(queue))
        if partition is not None and partition not in partitions:
            raise InvalidTask(
                f"queue {queue!r} has partitions 0 to {len(partitions) - 1}, not {partition}"
            )
        if ordering_key is not None:
            its_own = partition_of(ordering_key, 0, len(partitions))
            if partition not in (None, its_own):
                raise InvalidTask(
                    f"ordering key {ordering_key!r} is in partition {its_own}, not {partition}:"
                    " name one of both"
                )
            partitions = [its_own]
        elif partition is not None:
            partitions = [partition]
        found = []
        for number in partitions:
            found += await self._store.read(
                PartitionKey(queue, number), BEFORE_ALL, _ALL, limit, ordering_key
            )
        return sorted(found, key=lambda scheduled: scheduled.key)[:limit]

    def drop(self, queue: str, key: TaskKey, *, actor: str = "a person") -> None:
        """End this task, whatever it does: its owner is told through the log. It counts as
        completed, so its key does not run again; the next one of its ordering key does. A run under
        way is stopped (one in a thread goes on unheard). Raises InvalidTask for a key that no task
        can have."""
        entry: Entry = Drop(
            queue,
            partition_of(key.ordering_key, 0, self._partitions(queue)),
            key,
            actor,
            self._context.clock.now(),
        )
        check(entry)
        self._log.append([entry]).result()
        self._context.channel.announce(Notification(log=[queue]))

    async def status(self, queue: str) -> list[PartitionView]:
        """Every partition that has an owner, or has had one, or has something in the log."""
        self._partitions(queue)
        now = self._context.clock.now()
        statuses = await self._store.statuses(queue, now - round(STALE_SECONDS * MICROS))
        lags = await self._log.lag(queue)
        owners = owners_of(await self._context.coordinator.leases())
        nobody = ScheduleStatus(0, ScheduleRecord(), 0, 0, None)
        return [
            _view(
                number,
                owners.get(PartitionKey(queue, number)),
                lags.get(number, 0),
                statuses.get(number, nobody),
                now,
            )
            for number in sorted({*statuses, *lags})
        ]

    def _partitions(self, queue: str) -> int:
        known = self._tasks.database.read_now(self._tasks.queue_settings())
        if queue not in known:
            raise UnknownQueue(
                f"no queue named {queue!r} is known; known: {', '.join(sorted(known)) or 'none'}"
            )
        return known[queue].partitions


def _view(
    number: int, owner: str | None, lag: int, status: ScheduleStatus, now: int
) -> PartitionView:
    record, oldest = status.record, status.oldest
    return PartitionView(
        number,
        owner,
        lag,
        status.unfinished,
        status.stale,
        oldest,
        None if oldest is None else hour_of(oldest),
        record.loaded,
        record.in_flight,
        (max(record.read_through.run_at, 0) - now) / MICROS,
        record.reloads,
        record.trouble,
    )
