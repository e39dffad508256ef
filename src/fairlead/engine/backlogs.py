"""The fair partitions of this node: start and stop them with ownership, and pass them the events of
their triggers.

Partitions are taken over in batches. One without triggers costs only memory: it gets a coroutine of
its own with its first trigger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from fairlead.engine.context import NodeContext
from fairlead.engine.fair_partition import FairPartition
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.ordering import Ordering
from fairlead.engine.sharing import Sharing, by_lane, most_of_lane
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.model import LaneKey, PartitionKey, Trigger
from fairlead.pauses import outage_pause
from fairlead.ports.backlog_store import BacklogStore

log = logging.getLogger("fairlead.backlogs")

MOST_AT_ONCE = 500
"""Maximum number of partitions in one take-over."""


class Backlogs(SimplePart):
    """Route each trigger of a fair queue to its owned partition; drop triggers of other
    partitions."""

    def __init__(
        self, context: NodeContext, ordering: Ordering, store: BacklogStore, sharing: Sharing
    ) -> None:
        """Raise ConfigurationError for a queue that shares run time."""
        if context.kinds.timed:
            raise ConfigurationError(
                f"queue {min(context.kinds.timed)!r} has cost='runtime', which stored levels do not"
                " count: leave backlog= out, and its tasks wait in their rows"
            )
        self._sharing = sharing
        self._context = context
        self._ordering = ordering
        self._store = store
        self._on_dropped = context.events.on_dropped
        self._most = context.settings.look_ahead
        self._partitions: dict[PartitionKey, FairPartition] = {}
        self._tasks: dict[PartitionKey, asyncio.Task[None]] = {}
        """Coroutines of the partitions that have lanes."""
        self._to_take_over: dict[PartitionKey, None] = {}
        """Partitions to take over, in this order."""
        self._take_over_wanted = asyncio.Event()
        self._take_over_lock = asyncio.Lock()
        self._group: asyncio.TaskGroup | None = None

    def __contains__(self, queue: str) -> bool:
        return queue in self._sharing.weights

    # partitions come and go -----------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the partitions until cancelled. An exception in one ends the node."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                while True:
                    await self._take_over_wanted.wait()
                    self._take_over_wanted.clear()
                    while batch := list(self._to_take_over)[:MOST_AT_ONCE]:
                        await self._take_over(batch)
            finally:
                self._group = None  # a node that ends serves no new partition

    async def _take_over(self, keys: Sequence[PartitionKey]) -> None:
        """Take over these partitions, unless they are lost meanwhile."""
        partitions = [self._partitions[key] for key in keys]
        async with self._take_over_lock:
            try:
                found = await self._store.take_over(keys)
            except StoreUnavailable as error:
                log.warning(
                    "cannot take over while the store is unavailable", extra={"error": str(error)}
                )
                await self._context.clock.sleep(outage_pause())
                return
        for partition in partitions:
            key = partition.key
            if self._partitions.get(key) is partition:
                self._to_take_over.pop(key, None)
                partition.start(found[key])
                if not partition.is_empty:
                    self._serve(partition)

    def assign(self, owned: Collection[PartitionKey]) -> None:
        """Own exactly these partitions. Stop lost ones at once: their lease expired, or `release`
        finished."""
        changed = set()
        for lost in self._partitions.keys() - owned:
            changed.add(lost.queue)
            self._to_take_over.pop(lost, None)
            if (task := self._tasks.pop(lost, None)) is not None:
                task.cancel()
            self._partitions.pop(lost).drop()
        for key in sorted(set(owned) - self._partitions.keys()):
            if key.queue in self:
                weights = self._sharing.weights[key.queue]
                partition = FairPartition(key, weights, self._context, self._ordering)
                changed.add(key.queue)
                self._partitions[key] = partition
                self._want_take_over(key)
        resized = [key for key in self._partitions if key.queue in changed]
        counts = Counter(key.queue for key in resized)
        for key in resized:
            self._partitions[key].limit(most_of_lane(self._most, counts[key.queue]))

    def _want_take_over(self, key: PartitionKey) -> None:
        self._to_take_over[key] = None
        self._take_over_wanted.set()

    def _serve(self, partition: FairPartition) -> None:
        if self._group is not None and partition.key not in self._tasks:
            self._tasks[partition.key] = self._group.create_task(self._run(partition))

    async def _run(self, partition: FairPartition) -> None:
        """Serve a partition until it must be taken over again."""
        await partition.run()
        del self._tasks[partition.key]
        self._want_take_over(partition.key)

    async def release(self, keys: Collection[PartitionKey]) -> None:
        """Stop partitions before their leases are released, and save the state for the next
        owner."""
        mine = [self._partitions.pop(key) for key in keys if key in self._partitions]
        for partition in mine:
            self._to_take_over.pop(partition.key, None)
        tasks = [
            task for partition in mine if (task := self._tasks.pop(partition.key, None)) is not None
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if any(not partition.is_started for partition in mine):
            async with self._take_over_lock:
                pass  # A take-over that ended later would fence the next owner.
        for partition in mine:
            await partition.close()

    def positions(self, key: PartitionKey) -> dict[int, int] | None:
        """Return where the channel must begin, by priority; None before the take-over."""
        partition = self._started(key)
        return None if partition is None else partition.positions()

    def set_weights(self, queue: str, weights: Mapping[str, float]) -> None:
        """Set weights by fairness key that override the tasks' own, for what gets its level
        later."""
        changed = self._sharing.set_weights(queue, weights)
        for key, partition in self._partitions.items():
            if changed and key.queue == queue:
                partition.reweigh(changed)

    # triggers -------------------------------------------------------------------------------------

    def room(self, lane: LaneKey) -> int:
        """Return how many more triggers the lane takes now."""
        partition = self._started(lane[:2])
        return 0 if partition is None else partition.room(lane.priority)

    def room_behind(self, lane: LaneKey) -> int:
        """Return how many triggers behind the lane's position may be read again now."""
        partition = self._started(lane[:2])
        return 0 if partition is None else partition.room_behind(lane.priority)

    def held(self, lane: LaneKey) -> int | None:
        """Return how many triggers the lane has if all of them are in memory, else None."""
        partition = self._partitions.get(PartitionKey(lane.queue, lane.partition))
        return 0 if partition is None else partition.held(lane.priority)

    def resize(self, lane: LaneKey) -> None:
        """Apply the new share of the look-ahead."""
        partition = self._partitions.get(PartitionKey(lane.queue, lane.partition))
        if partition is not None:
            partition.resize(lane.priority)

    def accept(self, triggers: Sequence[Trigger]) -> None:
        """Accept new triggers of fair queues, in the order of the channel."""
        for partition, priority, batch in self._lanes(triggers):
            if partition is None:
                self._on_dropped(batch)
            else:
                partition.accept(priority, batch)
                self._serve(partition)

    def on_drained(self) -> None:
        """Note that the channel has no more triggers for now."""
        for key in self._tasks:
            self._partitions[key].on_drained()

    def taken(self, triggers: Sequence[Trigger]) -> None:
        """Note that triggers left the table, to be claimed."""
        for partition, priority, batch in self._lanes(triggers):
            if partition is not None:
                partition.taken(priority, batch)

    def claim_ended(self, triggers: Collection[Trigger]) -> None:
        """Note that the claim of these triggers ended, won or lost."""
        for partition, priority, batch in self._lanes(triggers):
            if partition is not None:
                partition.claim_ended(priority, batch)

    def refused(self, triggers: Collection[Trigger]) -> None:
        """Do nothing: the end of the claim acknowledges them."""

    def keep_out(self, triggers: Sequence[Trigger]) -> None:
        """Drop triggers in the table that must wait for the first task of their ordering key."""
        for partition, priority, batch in self._lanes(triggers):
            if partition is not None:
                partition.keep_out(priority, batch)

    def returned(self, triggers: Sequence[Trigger]) -> None:
        """Put back triggers whose claim has an unknown result."""
        for partition, priority, batch in self._lanes(triggers):
            if partition is None:
                self._on_dropped(batch)
            else:
                partition.returned(priority, batch)

    def _started(self, key: tuple[str, int]) -> FairPartition | None:
        """Return a partition that this node has taken over."""
        partition = self._partitions.get(PartitionKey(*key))
        return partition if partition is not None and partition.is_started else None

    def _lanes(
        self, triggers: Iterable[Trigger]
    ) -> list[tuple[FairPartition | None, int, list[Trigger]]]:
        """Group triggers by lane, with the partition if this node has taken it over."""
        return [
            (self._started(lane[:2]), lane.priority, batch) for lane, batch in by_lane(triggers)
        ]
