"""The ordered queues of a node: own and release their partitions, and route the ends of runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from fairlead.clock import MICROS
from fairlead.core.schedule.throughput import Window
from fairlead.declare.queue import OrderedQueue
from fairlead.errors import StoreUnavailable
from fairlead.model import ClaimedTask, Finish, PartitionKey, Trigger
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.intake import OrderedIntake
from fairlead.ordered.partition import OrderedPartition
from fairlead.ports.observer import OrderedGauges

log = logging.getLogger("fairlead.ordered")

MOST_IN_MEMORY = 20_000
"""Ordering keys in the memory of one node, shared by its partitions."""

_LEAST = 50
"""Least number of ordering keys in memory for each partition."""

_PATIENCE = 2.0
"""Seconds that cancelled runs get to end before their partition is closed without them."""


class OrderedQueues:
    """Router between the node and its partitions. Each partition is its own supervisor, so that a
    failure of one leaves the others alone."""

    def __init__(
        self, queues: Iterable[OrderedQueue], context: OrderedContext | None, drain: float
    ) -> None:
        """`context`: None where there are no ordered queues. `drain`: seconds that runs may take to
        end when a partition is released."""
        self._queues = {} if context is None else {queue.name: queue for queue in queues}
        self._context_or_none = context
        self._drain = drain
        self._partitions: dict[PartitionKey, OrderedPartition] = {}
        self._tasks: dict[PartitionKey, asyncio.Task[None]] = {}
        self._leaving_at: dict[PartitionKey, float] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def _context(self) -> OrderedContext:
        assert self._context_or_none is not None
        return self._context_or_none

    @property
    def names(self) -> Collection[str]:
        """Names of the queues."""
        return self._queues.keys()

    # partitions come and go -----------------------------------------------------------------------

    async def prepare(self) -> None:
        """Prepare the schedule and the log of each queue. Raise ConfigurationError for one that
        belongs to another application, and for a log that would lose entries; SchemaMismatch for a
        schedule without its tables. While one is unavailable, its first use checks it."""
        if self._queues:
            try:
                await self._context.store.prepare()
            except StoreUnavailable as error:
                log.warning("the schedule cannot be checked yet", extra={"error": str(error)})
        for queue in self._queues:
            try:
                for warning in await self._context.log.prepare(queue):
                    log.warning("the task log may lose entries", extra={"reason": warning})
            except StoreUnavailable as error:
                log.warning("the task log cannot be checked yet", extra={"error": str(error)})
                return

    async def run(self) -> None:
        """Serve the partitions until cancelled."""
        if not self._queues:
            return
        async with asyncio.TaskGroup() as group:
            self._group = group
            clock = group.create_task(self._context.clock.run())
            for partition in list(self._partitions.values()):
                self._serve(partition)
            try:
                await OrderedIntake(self._partitions, self._context).run()
            finally:
                self._group = None
                for task in (clock, *self._tasks.values()):
                    task.cancel()

    def assign(self, owned: Collection[PartitionKey]) -> None:
        """Own exactly these partitions. Stop lost ones at once: their lease expired, or `release`
        finished."""
        for lost in self._partitions.keys() - owned:
            self._remove(lost)
        if not self._queues:
            return
        for key in sorted(set(owned) - self._partitions.keys()):
            if key.queue in self._queues:
                partition = self._partitions[key] = OrderedPartition(
                    key,
                    self._queues[key.queue].partitions,
                    self._window(key.queue, 1),
                    self._context,
                )
                if self._group is not None:
                    self._serve(partition)
        for key, partition in self._partitions.items():
            partition.resize(self._window(key.queue, len(self._partitions)))
        self._context.log.poke()

    def _window(self, queue: str, partitions: int) -> Window:
        settings = self._queues[queue]
        most = Window().in_flight
        return Window(
            in_flight=max(_LEAST, min(most, MOST_IN_MEMORY // partitions)),
            most_bytes=self._context.bytes_of_each(partitions),
            look_ahead=round(settings.look_ahead * MICROS),
            prefetch=round(min(Window().prefetch, settings.look_ahead * MICROS / 3)),
        )

    def _serve(self, partition: OrderedPartition) -> None:
        assert self._group is not None
        self._tasks[partition.key] = self._group.create_task(partition.run())

    def _remove(self, key: PartitionKey) -> None:
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()
        self._leaving_at.pop(key, None)
        partition = self._partitions.pop(key)
        if (ends := partition.drop()) and self._group is not None:
            self._group.create_task(partition.write_last(ends))

    def releasable(self, keys: Collection[PartitionKey]) -> set[PartitionKey]:
        """Return which of these partitions, wanted by other nodes, run nothing. The busy ones start
        no task from now on; call again for them. After the deadline every partition is releasable,
        and its runs are cancelled."""
        if not self._queues:
            return set(keys)
        now = self._context.clock.monotonic()
        for key in self._leaving_at.keys() - set(keys):
            del self._leaving_at[key]
            self._partitions[key].stay()
        free = set()
        for key in keys:
            partition = self._partitions.get(key)
            if partition is None:
                free.add(key)
                continue
            partition.leave()
            deadline = self._leaving_at.setdefault(key, now + self._drain)
            if partition.is_drained or now >= deadline:
                free.add(key)
        return free

    async def release(self, keys: Collection[PartitionKey]) -> None:
        """Stop partitions before other nodes can take them. Runs may end until the deadline, and
        are cancelled then. The release continues even if its caller is cancelled."""
        mine = [self._partitions[key] for key in keys if key in self._partitions]
        if not mine:
            return
        releasing = asyncio.gather(*(self._release(partition) for partition in mine))
        await asyncio.shield(releasing)

    async def _release(self, partition: OrderedPartition) -> None:
        now = self._context.clock.monotonic()
        partition.leave()
        if not await partition.drained(
            self._leaving_at.get(partition.key, now + self._drain) - now
        ):
            for task_id in partition.in_flight.ids:
                self._context.stop_run(task_id, True)
            await partition.drained(_PATIENCE)
        if (task := self._tasks.pop(partition.key, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        await partition.close()
        if self._partitions.get(partition.key) is partition:
            del self._partitions[partition.key]
            self._leaving_at.pop(partition.key, None)

    async def stop(self) -> None:
        """Do nothing: partitions are released with their leases."""

    async def close(self) -> None:
        """Close the log after the end of the node."""
        if self._queues:
            await self._context.log.close()

    def leave(self) -> None:
        """Start no more tasks, because the node is ending."""
        for partition in self._partitions.values():
            partition.leave()

    # runs -----------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Read the log again, because it has new entries."""
        if self._queues:
            self._context.log.poke()

    def claim(self, trigger: Trigger, now: int) -> ClaimedTask | None:
        """Return the task of a trigger that is about to run; None when the task must not run any
        more."""
        partition = self._of(trigger)
        return None if partition is None else partition.in_flight.claim(trigger, now)

    def ended(self, trigger: Trigger, finish: Finish) -> None:
        """Queue the end of a run for writing."""
        if (partition := self._of(trigger)) is None:
            self._context.settled([trigger.id])
        else:
            partition.in_flight.ended(finish)

    def drop_ended(self, triggers: Iterable[Trigger]) -> None:
        """Drop runs that ended or never started and have no end to write."""
        for trigger in triggers:
            if (partition := self._of(trigger)) is not None:
                partition.in_flight.drop_ended([trigger.id])

    def _of(self, trigger: Trigger) -> OrderedPartition | None:
        return self._partitions.get(PartitionKey(trigger.queue, trigger.partition))

    # state ----------------------------------------------------------------------------------------

    async def unfinished(self) -> int:
        """Return how many tasks are left to run or retry, without scheduled tasks that have never
        run."""
        left = 0
        for queue in self._queues:
            left += sum((await self._context.log.lag(queue)).values())
            left += await self._context.store.unfinished(queue, self._context.clock.now())
        return left

    async def has_unfinished(self) -> bool:
        """Return whether a task is left to run or retry, as `unfinished`, without a count."""
        for queue in self._queues:
            if await self._context.store.has_due(queue, self._context.clock.now()):
                return True
            if await self._context.log.has_entries(queue):
                return True
        return False

    def gauges(self) -> dict[str, OrderedGauges]:
        """Return the gauges of each queue with partitions on this node."""
        found: dict[str, OrderedGauges] = {}
        for key, partition in self._partitions.items():
            one, so_far = partition.gauges(), found.get(key.queue)
            found[key.queue] = (
                one
                if so_far is None
                else OrderedGauges(
                    so_far.loaded + one.loaded,
                    so_far.in_flight + one.in_flight,
                    so_far.stale + one.stale,
                    min(so_far.look_ahead, one.look_ahead),
                    so_far.failing + one.failing,
                )
            )
        return found

    def reloads(self) -> Mapping[PartitionKey, int]:
        """Return the failures in a row of the partitions that have any."""
        return {
            key: partition.reloads
            for key, partition in self._partitions.items()
            if partition.reloads
        }
