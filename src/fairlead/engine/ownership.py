"""The ownership of partitions and pollers: leases, each queue shared evenly among its nodes.

A channel may assign the partitions of its queues itself (`TriggerChannel.shares_partitions`).
Leases then elect the pollers and assign the partitions of other queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlead.core.sharding.shares import Members, PartitionShares
from fairlead.engine.context import NodeContext
from fairlead.engine.lease_names import (
    lease_of,
    owners_of,
    partitions_of,
    poller_lease,
    pollers_of,
)
from fairlead.engine.membership import identity_of
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey

log = logging.getLogger("fairlead.ownership")


class _Situation(NamedTuple):
    """All that decides which leases a node acquires and releases."""

    held: Mapping[str, int]
    partitions: Mapping[str, int]
    members: Members
    owners: Mapping[str, str]
    """Owners of all leases."""


class Ownership:
    """Renew this node's leases, acquire free ones and release those beyond its share.

    After `NodeSettings.lease_seconds` without a renewal the node acts as if it owned nothing,
    whatever the coordinator says later.
    """

    def __init__(
        self,
        context: NodeContext,
        pollers: Sequence[str],
        releasable: Callable[[Collection[PartitionKey]], Collection[PartitionKey]],
    ) -> None:
        """`releasable`: takes partitions beyond this node's share, returns those to release now.
        Called again for the others."""
        self._context = context
        self._node = context.name
        self._lease_seconds = context.settings.lease_seconds
        self._coordinator = context.ports.coordinator
        self._pollers = tuple(pollers)
        self._releasable = releasable
        self._is_leaving = False
        self._poked = asyncio.Event()
        self._expires = 0.0
        """Monotonic seconds at which the leases of this node run out."""
        self._settled: _Situation | None = None
        """Situation in which this node had nothing to acquire or release; None if there is none."""
        self.partitions: Mapping[str, int] = {}
        """Number of partitions of each served queue."""
        self.shares = PartitionShares(identity_of(context.name), self._lease_seconds)
        """Shares of this node; the membership sets their members."""
        self.owned: frozenset[PartitionKey] = frozenset()
        self._elected: set[str] = set()
        self.changed = asyncio.Event()
        """Set whenever the elected pollers change."""

    def is_elected(self, poller: str) -> bool:
        """Return True while this node is elected to run the poller."""
        return poller in self._elected and self._now() < self._expires

    def poke(self) -> None:
        """Renew now instead of at the next interval, because something changed in the cluster."""
        self._poked.set()

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        every = self._lease_seconds / 4
        while True:
            self._poked.clear()
            try:
                # A shorter timeout would cancel a renewal that waits behind other requests.
                async with asyncio.timeout(max(every, self._expires - self._now())):
                    await self.renew()
            except (StoreUnavailable, TimeoutError) as error:
                if self._now() >= self._expires and (self.owned or self._elected):
                    log.warning(
                        "leases ran out while the coordinator was unavailable",
                        extra={"error": str(error)},
                    )
                    self._hold({})
            try:
                async with asyncio.timeout(every):
                    await self._poked.wait()
            except TimeoutError:
                pass

    def _now(self) -> float:
        return self._context.clock.monotonic()

    async def stop(self) -> None:
        """Release all leases. This part stops after the runs: no task of an ordered queue runs here
        when its lease is released, so two nodes never run one ordering key at once."""
        try:
            await self.release_all()
        except StoreUnavailable as error:
            log.warning(
                "could not release the partitions of this node; their leases expire",
                extra={"error": str(error)},
            )

    async def renew(self) -> None:
        """Do one round: renew, acquire, release."""
        began = self._now()
        held = await self._coordinator.renew(self._node, self._lease_seconds)
        if self._is_leaving:
            self._expires = began + self._lease_seconds
            self._hold(held)
            return
        leases = await self._coordinator.owners()
        situation = _Situation(held, self.partitions, self.shares.members, leases)
        if situation == self._settled:
            self._expires = began + self._lease_seconds
            return
        partitions = {
            queue: count
            for queue, count in self.partitions.items()
            if not self._is_assigned_by_channel(queue)
        }
        owners = {key: identity_of(owner) for key, owner in owners_of(leases).items()}
        mine = partitions_of(held)
        excess = self.shares.beyond(partitions, mine, owners, began)
        beyond = self._releasable(excess)
        if beyond:
            names = [lease_of(key) for key in beyond]
            held = {name: range_id for name, range_id in held.items() if name not in set(names)}
            # Stop the partitions before the next owner can take them.
            await self._context.events.on_releasing(beyond)
            self._hold(held)
            await self._release(names)
            mine = mine.difference(beyond)
        wanted = self.shares.wanted(partitions, mine, owners, began)
        ask = [lease_of(key) for key in wanted]
        leases_of_pollers = map(poller_lease, self._pollers)
        ask += [name for name in leases_of_pollers if name not in leases]
        if ask:
            won = await self._coordinator.acquire(ask, self._node, self._lease_seconds)
            held = {**held, **won}
        self._expires = began + self._lease_seconds
        self._hold(held)
        is_settled = not excess and not ask and self.shares.is_settled
        self._settled = situation if is_settled else None

    async def keep_alive(self) -> None:
        """Only renew the leases, from any event loop. Raises StoreUnavailable."""
        began = self._now()
        held = await self._coordinator.renew(self._node, self._lease_seconds)
        owned = {lease_of(key) for key in self.owned if not self._is_assigned_by_channel(key.queue)}
        if owned | set(map(poller_lease, self._elected)) <= held.keys():
            self._expires = max(self._expires, began + self._lease_seconds)

    async def release_all(self, but: Collection[str] = ()) -> None:
        """Release all leases at once, so that other nodes need not wait for them to expire.

        Keep the partitions of the queues in `but`, and renew their leases until they are released
        too. Acquire no more leases.
        """
        self._is_leaving = True
        kept = frozenset(key for key in self.owned if key.queue in but)
        names = [
            lease_of(key)
            for key in self.owned - kept
            if not self._is_assigned_by_channel(key.queue)
        ]
        names += map(poller_lease, self._elected)
        await self._context.events.on_releasing(self.owned - kept)
        self._elect(())
        self._own(kept)
        if names:
            await self._release(names)

    async def release_of(self, dead: Collection[str]) -> None:
        """Release the leases of nodes that are certainly dead. Raises StoreUnavailable."""
        for node in dead:
            leases = await self._coordinator.owners()
            names = [name for name, owner in leases.items() if owner == node]
            if names and (released := await self._coordinator.release(names, node)) is not None:
                self._context.channel.announce(released)
        self.poke()

    def on_gained(self, keys: Collection[PartitionKey]) -> None:
        """Own partitions that the channel assigned to this node."""
        self._own(self.owned.union(keys))

    async def hand_over(self, keys: Collection[PartitionKey]) -> None:
        """Stop partitions that the channel takes away when this returns."""
        await self._context.events.on_releasing(keys)
        self._own(self.owned.difference(keys))

    def on_lost(self, keys: Collection[PartitionKey]) -> None:
        """Drop partitions that the channel may already have assigned to other nodes."""
        self._own(self.owned.difference(keys))

    async def _release(self, names: Sequence[str]) -> None:
        notification = await self._coordinator.release(names, self._node)
        if notification is not None:
            self._context.channel.announce(notification)

    def _is_assigned_by_channel(self, queue: str) -> bool:
        """Return whether the channel, not leases, assigns the partitions of this queue
        (`on_gained`, `hand_over`, `on_lost`)."""
        context = self._context
        return context.channel.shares_partitions and queue not in context.kinds.ordered

    def _hold(self, held: Mapping[str, int]) -> None:
        self._elect(held)
        self._own(
            partitions_of(held)
            | {key for key in self.owned if self._is_assigned_by_channel(key.queue)}
        )

    def _elect(self, held: Iterable[str]) -> None:
        elected = pollers_of(held)
        if elected != self._elected:
            self._settled = None
            self._elected = elected
            self.changed.set()

    def _own(self, owned: frozenset[PartitionKey]) -> None:
        if owned != self.owned:
            self._settled = None
            log.info("partitions changed", extra={"owned": sorted(f"{q}/{p}" for q, p in owned)})
            self.owned = owned
            self._context.events.on_owned(owned)
