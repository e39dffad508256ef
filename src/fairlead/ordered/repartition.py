"""The move of an ordered queue to another number of partitions, while no worker serves the queue.

1. **Leases.** The move acquires the lease of every partition, so that no live worker runs a task.
2. **Seal.** The move takes over each partition, which fences every earlier owner, and writes a
   record that refuses every worker until the end of the move.
3. **Switch.** The task store gets the new number. Submitters that run use it within
   LAYOUT_SECONDS; nobody is refused.
4. **Rows.** Tasks and completed keys whose ordering key belongs to another partition move there.
5. **Log.** When every append by the old number has ended, each entry in the log is written to the
   partition to which its ordering key belongs now.
6. **Open.** The record of each partition gets its final form; workers with the new number may
   start.

The partition of an ordering key alone says what is to be moved, so a move that was cut off at any
step is repeated from the beginning, to the same number or another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead.clock import Clock
from fairlead.core.schedule.schedule import just_before
from fairlead.errors import ConfigurationError, InvalidTask, StoreUnavailable
from fairlead.model import NewTask, PartitionKey, ScheduleRecord
from fairlead.ordered.accept import check
from fairlead.ordered.ending import dropped
from fairlead.ordered.layout import LAYOUT_SECONDS, moved_entry
from fairlead.ordered.persistence import in_order
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.schedule_store import Fenced, ScheduleStore
from fairlead.ports.task_log import Batch, Drop, Entry, TaskLog

log = logging.getLogger("fairlead.ordered")

LEASE_SECONDS = 10.0
"""Seconds for which the move owns partitions without a renewal."""

PATIENCE_SECONDS = 15.0
"""Seconds for which the move waits for the leases of workers that have died."""

PAGE = 1000
"""Entries of the log in one read."""

_RETRY_SECONDS = 1.0
_MARGIN_SECONDS = 1.0


class Repartitioned(msgspec.Struct, frozen=True):
    """Result of a move."""

    queue: str
    partitions: int
    """Number of partitions of the queue now."""
    tasks: int
    """Unfinished tasks that were moved."""
    completed: int
    """Completed keys that were moved."""
    entries: int
    """Entries of the log that were written to the schedule."""
    left_out: int
    """Entries of the log that no schedule can hold; the log names them."""


@dataclass(frozen=True, kw_only=True)
class MoveContext:
    """Ports and callbacks of a move."""

    name: str
    """Name of the move as the owner of leases."""
    log: TaskLog
    store: ScheduleStore
    coordinator: Coordinator
    clock: Clock
    lease_of: Callable[[PartitionKey], str]
    """Returns the name of a partition's lease."""
    version: Callable[[], Awaitable[int]]
    """Reads the version of the queue's settings in the task store. Raises StoreUnavailable."""
    resize: Callable[[int], Awaitable[bool]]
    """Sets the new number of partitions in the task store, unless the version is another one;
    returns whether it was set. Raises StoreUnavailable."""
    report: Callable[[str], None] = field(default=lambda text: None)
    """Callback with the progress, for people."""


class Repartition:
    """One move of one queue; see the module."""

    def __init__(self, queue: str, partitions: int, context: MoveContext) -> None:
        """`partitions`: number of partitions from now on."""
        self._queue = queue
        self._count = partitions
        self._context = context
        self._leases: set[str] = set()
        self._range_ids: dict[int, int] = {}
        self._is_paused = False
        """Whether the queue was paused for the last owner of a partition."""
        self._mark = just_before(context.clock.now())
        """Key below all unfinished tasks of the queue, with which each record begins."""
        self._tasks = self._completed = self._entries = self._left_out = 0

    async def run(self) -> Repartitioned:
        """Move the queue. Raise ConfigurationError while workers or another move own a partition,
        StoreUnavailable if a server is away; run another move then, which goes on from there."""
        renewing = asyncio.ensure_future(self._renew())
        try:
            numbers = await self._acquire_all()
            # Not before: a refused move must not enlarge a topic, which Kafka cannot undo.
            await self._context.log.ensure_partitions(self._queue, self._count)
            await self._move(numbers)
        except Fenced as error:
            raise ConfigurationError(
                f"queue {self._queue!r}: another move or a worker took a partition over ({error});"
                " run the move again when it has ended"
            ) from None
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
            with contextlib.suppress(StoreUnavailable):  # they expire
                await self._context.coordinator.release([*self._leases], self._context.name)
        return Repartitioned(
            self._queue, self._count, self._tasks, self._completed, self._entries, self._left_out
        )

    async def _move(self, numbers: Collection[int]) -> None:
        context = self._context
        await self._take_over(numbers)
        while not await self._switch(numbers):
            pass
        switched_at = context.clock.monotonic()
        for number in numbers:
            await self._move_tasks(number)
        since = context.clock.monotonic() - switched_at
        context.report("waiting for submits that have begun")
        await context.clock.sleep(max(0.0, LAYOUT_SECONDS + _MARGIN_SECONDS - since))
        await context.log.await_appends(self._queue)
        await self._empty_log()
        for number in numbers:
            await self._save(number, is_moving=False)

    # 1. leases ------------------------------------------------------------------------------------

    async def _acquire_all(self) -> list[int]:
        """Acquire the lease of every partition that the queue has, has had, or will have; return
        these partitions. The lease of the first one decides between two moves."""
        await self._acquire([0])
        owned = {0}
        while True:
            # Another move may have added partitions before its leases ended.
            statuses = await self._context.store.statuses(self._queue, 0)
            lags = await self._context.log.lag(self._queue)
            if not (new := {*range(self._count), *statuses, *lags} - owned):
                return sorted(owned)
            await self._acquire(sorted(new))
            owned |= new

    async def _acquire(self, numbers: Sequence[int]) -> None:
        context = self._context
        until = context.clock.monotonic() + PATIENCE_SECONDS
        left = {context.lease_of(self._key(number)) for number in numbers}
        while True:
            won = await context.coordinator.acquire(sorted(left), context.name, LEASE_SECONDS)
            self._leases |= won.keys()
            left -= won.keys()
            if not left:
                return
            owners = await context.coordinator.owners()
            found = sorted({owners[lease] for lease in left if lease in owners})
            if context.clock.monotonic() >= until:
                raise ConfigurationError(
                    f"queue {self._queue!r}: {len(left)} of its partitions belong to"
                    f" {', '.join(found)}: stop all workers of the queue, and let no other move of"
                    " it run"
                )
            context.report(f"waiting for {', '.join(found) or 'leases'} to leave the queue")
            await context.clock.sleep(_RETRY_SECONDS)

    async def _renew(self) -> None:
        """Renew the leases until cancelled, so that workers and other moves wait instead of being
        refused by the seals."""
        while True:
            await self._context.clock.sleep(LEASE_SECONDS / 4)
            with contextlib.suppress(StoreUnavailable):
                await self._context.coordinator.renew(self._context.name, LEASE_SECONDS)

    # 2. seal, 3. switch, 6. open ------------------------------------------------------------------

    async def _take_over(self, numbers: Collection[int]) -> None:
        context = self._context
        for number in numbers:
            context.report(f"sealing partition {number}")
            # Rewind first, as a worker does: an earlier owner may still write what it has read.
            await context.log.rewind(self._key(number))
            owned = await context.store.take_over(self._key(number))
            self._range_ids[number] = owned.range_id
            self._is_paused |= owned.record.is_paused
            if owned.record != ScheduleRecord():  # else no owner has written anything
                self._mark = min(self._mark, owned.record.low_water_mark)

    async def _switch(self, numbers: Collection[int]) -> bool:
        """Seal the partitions and set the new number; return whether it was set: not if
        the queue's settings have changed meanwhile."""
        context = self._context
        # Read the version first: a move that takes a partition over after its seal changes it
        # before this one sets a number, however long this process hangs.
        version = await context.version()
        for number in numbers:
            await self._save(number, is_moving=True)
        held = await context.coordinator.renew(context.name, LEASE_SECONDS)
        if lost := self._leases - held.keys():
            raise StoreUnavailable(
                f"queue {self._queue!r}: {len(lost)} leases expired before all partitions were"
                " sealed; run the move again"
            )
        return await context.resize(version)

    async def _save(self, number: int, is_moving: bool) -> None:
        await self._context.store.keep(
            self._key(number), self._range_ids[number], self._record(is_moving)
        )

    def _record(self, is_moving: bool) -> ScheduleRecord:
        return ScheduleRecord(
            low_water_mark=self._mark,
            node=self._context.name,
            updated_at=self._context.clock.now(),
            partitions=self._count,
            is_moving=is_moving,
            is_paused=self._is_paused,
        )

    # 4. rows --------------------------------------------------------------------------------------

    async def _move_tasks(self, number: int) -> None:
        context, key = self._context, self._key(number)
        await context.store.move_attempts(key, self._range_ids[number])
        after = None
        while True:
            moved = await context.store.move_tasks(key, self._range_ids, self._count, after)
            self._tasks += moved.tasks
            self._completed += moved.completed
            context.report(
                f"partition {number}: {self._tasks:,} tasks and {self._completed:,} completed keys"
                " moved"
            )
            if (after := moved.after) is None:
                return

    # 5. log ---------------------------------------------------------------------------------------

    async def _empty_log(self) -> None:
        """Write the entries that are in the log now to the schedule. Later entries were appended by
        the new number of partitions, and stay."""
        context = self._context
        for number, waiting in sorted((await context.log.lag(self._queue)).items()):
            key = self._key(number)
            left = waiting
            while left > 0 and await context.log.is_behind(key):
                for batch in await context.log.receive([key], PAGE):
                    await self._take_in(batch)
                    left -= len(batch.entries) + batch.unreadable
                    context.report(f"{self._entries:,} entries of the log written to the schedule")

    async def _take_in(self, batch: Batch) -> None:
        self._left_out += batch.unreadable
        entries = list(self._fit(batch))
        for tasks, drop in in_order(entries):
            by_partition: dict[int, list[NewTask]] = {}
            for task in tasks:
                by_partition.setdefault(task.partition, []).append(task)
            for number, some in by_partition.items():
                await self._persist(number, some)
            if drop is not None:
                await self._drop(drop)
        await self._context.log.commit(batch)
        self._entries += len(entries)

    def _fit(self, batch: Batch) -> Iterable[Entry]:
        """Yield the entries of a batch, each with the partition to which it belongs now."""
        for entry in batch.entries:
            try:
                check(entry, batch.partition)
            except InvalidTask as error:
                self._left_out += 1
                fields = {"partition": batch.partition, "error": str(error)}
                log.error("an entry of the task log is left out", extra=fields)
            else:
                yield moved_entry(entry, self._count)

    async def _persist(self, number: int, tasks: Sequence[NewTask]) -> None:
        self._mark = min([self._mark, *(just_before(task.run_at) for task in tasks)])
        await self._context.store.persist(
            self._key(number), self._range_ids[number], tasks, self._record(is_moving=True)
        )

    async def _drop(self, drop: Drop) -> None:
        key = self._key(drop.partition)
        scheduled = await self._context.store.find(key, drop.key)
        if scheduled is not None:
            end = dropped(scheduled, False, drop.actor, drop.at, self._context.name)
            await self._context.store.finish(key, self._range_ids[drop.partition], [end])

    def _key(self, number: int) -> PartitionKey:
        return PartitionKey(self._queue, number)
