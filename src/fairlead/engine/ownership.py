"""Which partitions and which pollers are this node's: leases, shared evenly among the nodes that
live.

A channel may share out the partitions of its queues by itself (`TriggerChannel.shares_partitions`):
leases then elect the pollers, and share out what is left.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from fairlead.engine.context import NodeContext
from fairlead.engine.membership import identity_of
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey
from fairlead.ports.coordinator import Lease

log = logging.getLogger("fairlead.ownership")

_PARTITION = "partition/"
_POLLER = "poller/"


def lease_of(key: PartitionKey) -> str:
    """The name of the lease on a partition."""
    return f"{_PARTITION}{key.queue}/{key.partition}"


def owners_of(leases: Iterable[Lease]) -> dict[PartitionKey, str]:
    """The node that holds each partition, as the leases say."""
    return {key: lease.owner for lease in leases for key in _partitions([lease.name])}


class Ownership:
    """Renews this node's leases, takes free ones up to its share, gives up what is beyond it.

    Past `NodeSettings.lease_seconds` without a renewal this node acts as if it owned nothing,
    whatever the coordinator may say later.
    """

    def __init__(
        self,
        context: NodeContext,
        pollers: Sequence[str],
        may_go: Callable[[Collection[PartitionKey]], Collection[PartitionKey]],
    ) -> None:
        """`may_go`: returns which of the partitions that are beyond this node's share it may give
        up now; it is asked again about the others."""
        self._context = context
        self._node = context.name
        self._lease_seconds = context.settings.lease_seconds
        self._coordinator = context.ports.coordinator
        self._pollers = tuple(pollers)
        self._may_go = may_go
        self._is_leaving = False
        self._look = asyncio.Event()
        self._expires = 0.0
        self.partitions: Mapping[str, int] = {}
        """How many partitions each queue has that this node serves."""
        self.members: frozenset[str] = frozenset()
        """Identities of the living nodes to share with; kept up to date by the membership."""
        self.owned: frozenset[PartitionKey] = frozenset()
        self._elected: set[str] = set()
        self.changed = asyncio.Event()
        """Set whenever the elected pollers change."""

    def is_elected(self, poller: str) -> bool:
        """True while this node is the one that runs the poller."""
        return poller in self._elected and self._now() < self._expires

    def look(self) -> None:
        """Something changed in the cluster: do not wait for the next renewal."""
        self._look.set()

    async def run(self) -> None:
        """Keep the leases for as long as the node lives."""
        every = self._lease_seconds / 4
        while True:
            self._look.clear()
            try:
                # Cut off early it would begin again behind whatever it waits for.
                async with asyncio.timeout(max(every, self._expires - self._now())):
                    await self.renew()
            except (StoreUnavailable, TimeoutError) as error:
                if self._now() >= self._expires and (self.owned or self._elected):
                    log.warning(
                        "leases ran out while the coordinator was away", extra={"error": str(error)}
                    )
                    self._hold({})
            try:
                async with asyncio.timeout(every):
                    await self._look.wait()
            except TimeoutError:
                pass

    def _now(self) -> float:
        return self._context.clock.monotonic()

    async def stop(self) -> None:
        """Give up what is left: partitions of ordered queues go when nothing of them runs here any
        more, so that no ordering key is ever run twice at once."""
        try:
            await self.release_all()
        except StoreUnavailable as error:
            log.warning(
                "partitions are free when their leases run out", extra={"error": str(error)}
            )

    async def renew(self) -> None:
        """One round: renew, take, give up."""
        began = self._now()
        held = await self._coordinator.renew(self._node, self._lease_seconds)
        if self._is_leaving:
            self._expires = began + self._lease_seconds
            self._hold(held)
            return
        leases = await self._coordinator.leases()
        wanted = [
            lease_of(PartitionKey(queue, partition))
            for queue, count in self.partitions.items()
            if not self._is_shared_out(queue)
            for partition in range(count)
        ]
        beyond = [
            lease_of(key) for key in self._may_go(_partitions(self._beyond_share(held, wanted)))
        ]
        if beyond:
            held = {name: range_id for name, range_id in held.items() if name not in beyond}
            # Stopped before the next owner can have them.
            await self._context.events.on_releasing(_partitions(beyond))
            self._hold(held)
            await self._release(beyond)
        taken = {lease.name for lease in leases}
        free = [name for name in wanted if name not in taken]
        mine = [name for name in held if name.startswith(_PARTITION)]
        room = self._share(len(wanted)) - len(mine)
        # Each node begins at another place, so that they seldom reach for the same lease.
        start = zlib.crc32(self._node.encode()) % max(1, len(free))
        ask = (free[start:] + free[:start])[: max(0, room)]
        ask += [_POLLER + name for name in self._pollers if _POLLER + name not in taken]
        if ask:
            held |= await self._coordinator.acquire(ask, self._node, self._lease_seconds)
        self._expires = began + self._lease_seconds
        self._hold(held)

    async def release_all(self, but: Collection[str] = ()) -> None:
        """Give up everything at once, so that others need not wait for the leases to run out; but
        for the partitions of these queues, whose leases are renewed until they are given up too.
        Nothing more is taken."""
        self._is_leaving = True
        kept = frozenset(key for key in self.owned if key.queue in but)
        names = [lease_of(key) for key in self.owned - kept if not self._is_shared_out(key.queue)]
        names += [_POLLER + name for name in self._elected]
        await self._context.events.on_releasing(self.owned - kept)
        self._elect(())
        self._own(kept)
        if names:
            await self._release(names)

    def on_gained(self, keys: Collection[PartitionKey]) -> None:
        """The channel has given these to this node."""
        self._own(self.owned.union(keys))

    async def hand_over(self, keys: Collection[PartitionKey]) -> None:
        """The channel takes these away as soon as this returns."""
        await self._context.events.on_releasing(keys)
        self._own(self.owned.difference(keys))

    def on_lost(self, keys: Collection[PartitionKey]) -> None:
        """The channel may have given these to others already."""
        self._own(self.owned.difference(keys))

    async def _release(self, names: Sequence[str]) -> None:
        notification = await self._coordinator.release(names, self._node)
        if notification is not None:
            self._context.channel.announce(notification)

    def _share(self, partitions: int) -> int:
        identity = identity_of(self._node)
        nodes = sorted(self.members | {identity})
        base, rest = divmod(partitions, len(nodes))
        return base + (nodes.index(identity) < rest)

    def _is_shared_out(self, queue: str) -> bool:
        """Whether the channel gives and takes the partitions of this queue, by `gained`,
        `hand_over` and `lost`, instead of leases."""
        context = self._context
        return context.channel.shares_partitions and queue not in context.kinds.ordered

    def _beyond_share(self, held: Mapping[str, int], wanted: Sequence[str]) -> list[str]:
        mine = sorted(name for name in held if name.startswith(_PARTITION))
        too_many = len(mine) - self._share(len(wanted))
        strangers = [name for name in mine if name not in set(wanted)]
        rest = [name for name in mine if name in set(wanted)]
        return strangers + (
            rest[-(too_many - len(strangers)) :] if too_many > len(strangers) else []
        )

    def _hold(self, held: Mapping[str, int]) -> None:
        self._elect(held)
        self._own(_partitions(held) | {key for key in self.owned if self._is_shared_out(key.queue)})

    def _elect(self, held: Iterable[str]) -> None:
        elected = {name.removeprefix(_POLLER) for name in held if name.startswith(_POLLER)}
        if elected != self._elected:
            self._elected = elected
            self.changed.set()

    def _own(self, owned: frozenset[PartitionKey]) -> None:
        if owned != self.owned:
            log.info("partitions changed", extra={"owned": sorted(f"{q}/{p}" for q, p in owned)})
            self.owned = owned
            self._context.events.on_owned(owned)


def _partitions(leases: Iterable[str]) -> frozenset[PartitionKey]:
    return frozenset(
        PartitionKey(queue, int(partition))
        for queue, _, partition in (
            name.removeprefix(_PARTITION).rpartition("/")
            for name in leases
            if name.startswith(_PARTITION)
        )
    )
