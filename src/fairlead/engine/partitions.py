"""The partitions of a node: assign them to the parts that read them, and release them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from fairlead.engine.context import NodeContext
from fairlead.engine.granting import Granting
from fairlead.engine.intake import Intake
from fairlead.engine.membership import Membership
from fairlead.engine.ordering import Ordering
from fairlead.engine.ownership import Ownership
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, TriggerPath
from fairlead.ordered.queues import OrderedQueues

log = logging.getLogger("fairlead.node")


class Partitions:
    """Assign the owned partitions to the parts that read them.

    This part stops before the runs: other nodes take the partitions over while runs here still end.
    """

    def __init__(
        self,
        context: NodeContext,
        ownership: Ownership,
        membership: Membership,
        ordered: OrderedQueues,
        intake: Intake,
        ordering: Ordering,
        granting: Granting,
    ) -> None:
        self._context = context
        self._ownership = ownership
        self._membership = membership
        self._ordered = ordered
        self._intake = intake
        self._ordering = ordering
        self._granting = granting
        self._owned: frozenset[PartitionKey] = frozenset()
        self._read: dict[PartitionKey, dict[int, int]] = {}
        """Partitions that the channel reads, with the position by priority."""
        self._has_joined = False
        self._moved: set[PartitionKey] = set()
        """Partitions whose channel positions changed, and that are not read on yet."""

    async def run(self) -> None:
        """Return at once: ownership assigns and releases partitions by events."""

    async def stop(self) -> None:
        """Release all partitions but those of ordered queues, which are released when none of their
        tasks runs here."""
        self._ordered.leave()
        try:
            await self._membership.leave()
            await self._context.channel.leave()
            await self._ownership.release_all(but=self._ordered.names)
        except StoreUnavailable as error:
            log.warning(
                "could not release the partitions of this node; their leases expire",
                extra={"error": str(error)},
            )

    def resize(self, partitions: Mapping[str, int]) -> None:
        """Set the numbers of partitions of these served queues."""
        if self._ownership.resize(partitions) and self._has_joined:
            self.join()

    def join(self) -> None:
        """Join the channel with the served queues and their numbers of partitions."""
        self._has_joined = True
        context = self._context
        partitions = {
            queue: count
            for queue, count in self._ownership.partitions.items()
            if queue not in context.kinds.ordered
        }
        seconds = context.settings.lease_seconds
        context.channel.join(partitions, context.name, self._ownership, seconds)

    def assign(self, owned: frozenset[PartitionKey]) -> None:
        """Own exactly these partitions from now on."""
        context, kinds = self._context, self._context.kinds
        changed = self._owned ^ owned
        lost = frozenset(key for key in self._owned - owned if key.queue not in kinds.ordered)
        if lost:
            self._granting.drop(lost)
            dropped = context.table.drop(lost)
            context.events.on_ready()  # `drop` has made all columns of the table ready again
            # The intake accepts them again if this node owns the partition again.
            self._intake.drop([each for each in dropped if each.path != TriggerPath.GRANT])
            self._ordering.drop(lost)
        self._owned = owned
        self._ordered.assign(owned)
        self._intake.assign(owned)
        self._read_on(changed)

    def on_positions_changed(self, key: PartitionKey) -> None:
        """Have the channel read on, once for all partitions that change now."""
        if not self._moved:
            asyncio.get_running_loop().call_soon(self._read_moved)
        self._moved.add(key)

    def _read_moved(self) -> None:
        moved, self._moved = self._moved, set()
        self._read_on(moved)

    def _read_on(self, changed: Collection[PartitionKey]) -> None:
        """Have the channel read the owned ones of these partitions, and no longer the others: those
        with a stored backlog after it is taken over, the others at once."""
        for key in changed:
            if (positions := self._positions(key)) is None:
                self._read.pop(key, None)
            else:
                self._read[key] = positions
        self._context.channel.assign(self._read.copy())

    def _positions(self, key: PartitionKey) -> dict[int, int] | None:
        """Return where the channel begins to read the partition; None if it must not."""
        if key not in self._owned or key.queue in self._context.kinds.ordered:
            return None
        return self._intake.positions(key)

    async def release(self, keys: Collection[PartitionKey]) -> None:
        """Stop partitions before other nodes can take them."""
        await self._intake.release(keys)
        await self._ordered.release(keys)
