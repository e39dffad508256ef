"""Partitions of a node as they come and go: who reads them, and how they are left."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from fairlead.engine.backlogs import Backlogs
from fairlead.engine.context import NodeContext
from fairlead.engine.intake import Intake
from fairlead.engine.membership import Membership
from fairlead.engine.ordering import Ordering
from fairlead.engine.ownership import Ownership
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey
from fairlead.ordered.queues import OrderedQueues

log = logging.getLogger("fairlead.node")


class Partitions:
    """Hands the owned partitions to the parts that read them. As a part of the node it ends first:
    other nodes take over while runs here still end."""

    def __init__(
        self,
        context: NodeContext,
        ownership: Ownership,
        membership: Membership,
        ordered: OrderedQueues,
        backlogs: Backlogs,
        intake: Intake,
        ordering: Ordering,
    ) -> None:
        self._context = context
        self._ownership = ownership
        self._membership = membership
        self._ordered = ordered
        self.backlogs = backlogs
        self._intake = intake
        self._ordering = ordering
        self._owned: frozenset[PartitionKey] = frozenset()
        self._has_joined = False

    async def run(self) -> None:
        """Return: partitions come and go by events."""

    async def stop(self) -> None:
        """Release all partitions but those of ordered queues, which start nothing more: they go
        when nothing of them runs here any more."""
        self._ordered.leave()
        try:
            await self._membership.retire()
            await self._context.channel.leave()
            await self._ownership.release_all(but=self._ordered.names)
        except StoreUnavailable as error:
            log.warning(
                "partitions are free when their leases run out", extra={"error": str(error)}
            )

    def resize(self, partitions: Mapping[str, int]) -> None:
        """Serve queues of so many partitions each."""
        if partitions == self._ownership.partitions:
            return
        self._ownership.partitions = partitions
        if self._has_joined:
            self.join()

    def join(self) -> None:
        """Tell the channel which queues this node serves, and of how many partitions each."""
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
        """Own exactly these from now on."""
        context, kinds = self._context, self._context.kinds
        lost = frozenset(key for key in self._owned - owned if key.queue not in kinds.ordered)
        if lost and not kinds.channel_decides_order:
            dropped = context.table.drop(lost)
            self._intake.taken([trigger for trigger in dropped if trigger.level is None])
            # Also those of fair queues: this node may own the partition again in a moment.
            self._intake.forget(dropped)
            self._ordering.drop(lost)
        self._owned = owned
        self._ordered.assign(owned)
        self.backlogs.assign(owned)
        self.read_on()

    def read_on(self) -> None:
        """Have the channel read fifo partitions as soon as they are owned, fair ones once their
        backlog was taken over."""
        kinds = self._context.kinds
        fifo: dict[PartitionKey, dict[int, int]] = {
            key: {} for key in self._owned if key.queue not in kinds.fair | kinds.ordered
        }
        self._context.channel.assign(fifo | self.backlogs.positions())

    async def release(self, keys: Collection[PartitionKey]) -> None:
        """Stop these before other nodes can have them."""
        await self.backlogs.release(keys)
        await self._ordered.release(keys)
