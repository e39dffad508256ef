"""The ordered queues of a node: their partitions come and go, and are told what becomes of their
runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from fairlead.clock import MICROS
from fairlead.core.schedule.throughput import Window
from fairlead.declare.queue import Queue
from fairlead.model import Finish, GrabbedTask, PartitionKey, Trigger
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.intake import Intake
from fairlead.ordered.partition import Partition
from fairlead.ports.observer import OrderedGauges

MOST_IN_MEMORY = 20_000
"""Ordering keys in the memory of one node: its partitions share them."""

_LEAST = 50
"""Of each partition, however many there are."""

_PATIENCE = 2.0
"""Seconds that cancelled runs of a partition get to end before it is given up."""


class OrderedQueues:
    """Between the node and its partitions. A partition is its own supervisor: what breaks one
    breaks no other."""

    def __init__(
        self, queues: Iterable[Queue], around: OrderedContext | None, drain: float
    ) -> None:
        """`around`: None where there can be none. `drain`: seconds that what runs may take to end
        when a partition goes."""
        self._queues = {} if around is None else {queue.name: queue for queue in queues}
        self._given = around
        self._drain = drain
        self._partitions: dict[PartitionKey, Partition] = {}
        self._tasks: dict[PartitionKey, asyncio.Task[None]] = {}
        self._leaving_at: dict[PartitionKey, float] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def _around(self) -> OrderedContext:
        assert self._given is not None
        return self._given

    def __len__(self) -> int:
        """How many queues."""
        return len(self._queues)

    @property
    def names(self) -> Collection[str]:
        """Of the queues."""
        return self._queues.keys()

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    # partitions come and go -----------------------------------------------------------------------

    async def run(self) -> None:
        """Serve for as long as the node lives."""
        if not self._queues:
            return
        async with asyncio.TaskGroup() as group:
            self._group = group
            for partition in list(self._partitions.values()):
                self._serve(partition)
            try:
                await Intake(self._partitions, self._around).run()
            finally:
                self._group = None
                for task in self._tasks.values():
                    task.cancel()

    def assign(self, owned: Collection[PartitionKey]) -> None:
        """From now on these are owned. What was lost stops at once: its lease has run out, or
        `release` was awaited."""
        for gone in self._partitions.keys() - owned:
            self._take_out(gone)
        if not self._queues:
            return
        for key in sorted(set(owned) - self._partitions.keys()):
            if key.queue in self._queues:
                partition = self._partitions[key] = Partition(
                    key, self._window(key.queue, 1), self._around
                )
                if self._group is not None:
                    self._serve(partition)
        for key, partition in self._partitions.items():
            partition.resize(self._window(key.queue, len(self._partitions)))
        self._around.log.look()

    def _window(self, queue: str, partitions: int) -> Window:
        settings = self._queues[queue]
        most = Window().in_flight
        return Window(
            in_flight=max(_LEAST, min(most, MOST_IN_MEMORY // partitions)),
            look_ahead=round(settings.look_ahead * MICROS),
            prefetch=round(min(Window().prefetch, settings.look_ahead * MICROS / 3)),
        )

    def _serve(self, partition: Partition) -> None:
        assert self._group is not None
        self._tasks[partition.key] = self._group.create_task(partition.run())

    def _take_out(self, key: PartitionKey) -> None:
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()
        self._leaving_at.pop(key, None)
        partition = self._partitions.pop(key)
        if (ends := partition.drop()) and self._group is not None:
            self._group.create_task(partition.write_last(ends))

    def may_go(self, keys: Collection[PartitionKey]) -> set[PartitionKey]:
        """Of these, which others are to have, those that nothing runs of any more. The rest starts
        nothing from here on; ask again. Past the deadline what still runs is cancelled, and its
        partition may go."""
        if not self._queues:
            return set(keys)
        now = self._around.clock.monotonic()
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
        """Stop these before others can have them: what runs may end, until the deadline; then it is
        cancelled. If nobody waits for that any more, it goes on all the same."""
        mine = [self._partitions[key] for key in keys if key in self._partitions]
        if not mine:
            return
        releasing = asyncio.gather(*(self._release(partition) for partition in mine))
        await asyncio.shield(releasing)

    async def _release(self, partition: Partition) -> None:
        now = self._around.clock.monotonic()
        partition.leave()
        if not await partition.drained(
            self._leaving_at.get(partition.key, now + self._drain) - now
        ):
            for task_id in partition.in_flight.ids:
                self._around.stop_run(task_id, True)
            await partition.drained(_PATIENCE)
        if (task := self._tasks.pop(partition.key, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        await partition.close()
        if self._partitions.get(partition.key) is partition:
            del self._partitions[partition.key]
            self._leaving_at.pop(partition.key, None)

    async def stop(self) -> None:
        """Leave everything as it is: partitions are given up with their leases."""

    async def close(self) -> None:
        """The node has ended."""
        if self._queues:
            await self._around.log.close()

    def leave(self) -> None:
        """The node is ending: start nothing more."""
        for partition in self._partitions.values():
            partition.leave()

    # runs -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """The log has more."""
        if self._queues:
            self._around.log.look()

    def grab(self, trigger: Trigger, now: int) -> GrabbedTask | None:
        """It is about to run; None when it must not any more."""
        partition = self._of(trigger)
        return None if partition is None else partition.in_flight.claim(trigger, now)

    def ended(self, trigger: Trigger, finish: Finish) -> None:
        """A run has ended like this."""
        if (partition := self._of(trigger)) is None:
            self._around.settled([trigger.id])
        else:
            partition.in_flight.ended(finish)

    def let_go(self, triggers: Iterable[Trigger]) -> None:
        """The runs of these are over, or were never begun, and nothing is to be written of them."""
        for trigger in triggers:
            if (partition := self._of(trigger)) is not None:
                partition.in_flight.let_go([trigger.id])

    def _of(self, trigger: Trigger) -> Partition | None:
        return self._partitions.get(PartitionKey(trigger.queue, trigger.partition))

    # looking at it --------------------------------------------------------------------------------

    async def unfinished(self) -> int:
        """How many tasks are left to run or to retry; those scheduled ahead that have never run do
        not count."""
        left = 0
        for queue in self._queues:
            left += sum((await self._around.log.lag(queue)).values())
            left += await self._around.store.unfinished(queue, self._around.clock.now())
        return left

    def gauges(self) -> dict[str, OrderedGauges]:
        """Of each queue that this node has partitions of."""
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
        """Failures in a row, of the partitions that have any."""
        return {
            key: partition.reloads
            for key, partition in self._partitions.items()
            if partition.reloads
        }
