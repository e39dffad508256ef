"""The ownership of partitions and pollers: leases, each queue shared evenly among its nodes.

A channel may assign the partitions of its queues itself (`TriggerChannel.shares_partitions`).
Leases then elect the pollers and assign the partitions of other queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

from fairlead.core.sharding.shares import Members, PartitionShares
from fairlead.engine.context import NodeContext
from fairlead.engine.leases import Elections, PartitionLeases, lease_of
from fairlead.engine.liveness import RENEWALS
from fairlead.engine.membership import identity_of
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey
from fairlead.pauses import event_or_pause

log = logging.getLogger("fairlead.ownership")


MOST_AT_ONCE = 2000
"""Leases acquired by one request, so that their partitions start without a stall of the loop."""

_QUEUES_AT_ONCE = 200
"""Queues whose shares are computed before other coroutines run."""

_MOST_LOGGED = 100
"""Owned partitions up to which a log line names them."""


class Ownership:
    """Renew this node's leases, acquire free ones and release those beyond its share.

    After `NodeSettings.lease_seconds` without a renewal the node acts as if it owned nothing,
    whatever the coordinator says later.
    """

    def __init__(
        self,
        context: NodeContext,
        elections: Elections,
        releasable: Callable[[Collection[PartitionKey]], Collection[PartitionKey]],
    ) -> None:
        """`releasable`: takes partitions beyond this node's share, returns those to release now.
        Called again for the others."""
        self._context = context
        self._elections = elections
        self._releasable = releasable
        self._is_leaving = False
        self._poked = asyncio.Event()
        self._held: PartitionLeases[int] = PartitionLeases()
        """Range ids of the leases of this node."""
        self._leases: PartitionLeases[str] = PartitionLeases()
        """Owners of the leases of all nodes."""
        self._open: set[str] = set()
        """Queues of which this node may have partitions to acquire or to release."""
        self._round = asyncio.Lock()
        """Held during a round, in which leases may be acquired."""
        self._unreleased: set[str] = set()
        """Leases that this node may hold without owning them: their acquisition or release has not
        returned, or it failed."""
        self.partitions: Mapping[str, int] = {}
        """Number of partitions of each served queue."""
        self.shares = PartitionShares(identity_of(context.name), context.settings.lease_seconds)
        """Shares of this node."""
        self._changed: set[str] = set()
        """Queues whose partitions or nodes changed since the last renewal."""
        self.owned: frozenset[PartitionKey] = frozenset()

    def resize(self, partitions: Mapping[str, int]) -> bool:
        """Set the numbers of partitions of these served queues; return whether any changed."""
        changed = {queue for queue, _ in partitions.items() - self.partitions.items()}
        if changed:
            self.partitions = {**self.partitions, **partitions}
            self._changed |= changed
        return bool(changed)

    def set_members(self, members: Members) -> bool:
        """Set the living nodes; return whether they changed."""
        before = self.shares.members
        if is_changed := self.shares.set_members(members):
            self._changed |= before.differing(members)
        return is_changed

    def poke(self) -> None:
        """Renew now instead of at the next interval, because something changed in the cluster."""
        self._poked.set()

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        every, expiry = self._context.settings.lease_seconds / RENEWALS, self._context.leases
        while True:
            self._poked.clear()
            try:
                # A shorter timeout would cancel a renewal that waits behind other requests.
                async with (
                    asyncio.timeout(max(every, expiry.at - expiry.now())),
                    self._round,
                ):
                    await self.renew()
            except (StoreUnavailable, TimeoutError) as error:
                self.drop_expired(str(error))
            await event_or_pause(self._poked, every)

    def drop_expired(self, error: str = "the process was stopped, or its machine") -> None:
        """Own nothing from now on if the leases have expired."""
        is_holding = bool(self.owned or self._elections.leases)
        if is_holding and not self._context.leases.is_ahead():
            log.warning("leases ran out before a renewal", extra={"error": error})
            self._hold({})

    async def stop(self) -> None:
        """Release all leases. This part stops after the runs: no task of an ordered queue runs here
        when its lease is released, so two nodes never run one ordering key at once."""
        self._is_leaving = True
        try:
            async with asyncio.timeout(self._context.settings.lease_seconds):
                async with self._round:  # it may have acquired leases just now
                    await self.release_all()
        except (StoreUnavailable, TimeoutError) as error:
            log.warning(
                "could not release the partitions of this node; their leases expire",
                extra={"error": str(error)},
            )

    async def renew(self) -> None:
        """Do one round: renew, acquire, release."""
        began = self._context.leases.now()
        held = await self._renew()
        if self._is_leaving:
            self._extend(began)
            self._held.replace(held)
            self._own(self.owned & self._held.keys | self._assigned_by_channel())
            return
        leases = await self._context.ports.coordinator.owners(at_renewal=True)
        self._open |= self._held.replace(held) | self._leases.replace(leases) | self._changed
        self._changed = set()
        free_pollers = self._elections.free(leases)
        if not self._open and not free_pollers:
            self._extend(began)
            self._hold(held)
            return
        excess = await self._excess(began)
        if self._is_leaving:
            return
        if beyond := self._releasable(excess):
            names = {lease_of(key): None for key in beyond}
            held = {name: range_id for name, range_id in held.items() if name not in names}
            # Stop the partitions before the next owner can take them.
            await self._context.events.on_releasing(beyond)
            if self._is_leaving:
                return
            self._hold(held)
            await self._release([*names])
        wanted = await self._wanted(began)
        if self._is_leaving:
            return
        self._extend(began)
        self._hold(held)
        await self._acquire(free_pollers + [lease_of(key) for key in wanted], held, leases)
        waiting = {queue for queue in self._open if self.shares.may_change(queue, began)}
        missed = [key for key in wanted if key not in self._held.keys]
        self._open = waiting.union(key.queue for key in (*excess, *missed))

    async def _renew(self) -> Mapping[str, int]:
        context = self._context
        return await context.ports.coordinator.renew(context.name, context.settings.lease_seconds)

    def _extend(self, began: float) -> None:
        self._context.leases.extend(began, self._context.settings.lease_seconds)

    async def _each(
        self, queues: Collection[str]
    ) -> AsyncIterator[tuple[str, int, set[int], dict[int, str]]]:
        """Yield each of these queues: its name, number of partitions, partitions held here, and the
        identity of the owner of each partition."""
        for number, queue in enumerate(sorted(queues), 1):
            if not number % _QUEUES_AT_ONCE:
                await asyncio.sleep(0)
            count = 0 if self._is_assigned_by_channel(queue) else self.partitions.get(queue, 0)
            owners = {
                partition: identity_of(owner) for partition, owner in self._leases.of(queue).items()
            }
            yield queue, count, set(self._held.of(queue)), owners

    async def _excess(self, now: float) -> list[PartitionKey]:
        """Return the partitions held beyond this node's share."""
        mine = [queue for queue in self._open if self._held.of(queue)]
        return [key async for state in self._each(mine) for key in self.shares.beyond(*state, now)]

    async def _wanted(self, now: float) -> list[PartitionKey]:
        """Return the free partitions of this node's share."""
        queues = self._each(self._open)
        return [key async for state in queues for key in self.shares.wanted(*state, now)]

    async def _acquire(
        self, names: Sequence[str], held: Mapping[str, int], leases: Mapping[str, str]
    ) -> None:
        """Acquire these leases besides those held, and own their partitions. `leases`: owners of
        all leases."""
        node, seconds = self._context.name, self._context.settings.lease_seconds
        for first in range(0, len(names), MOST_AT_ONCE):
            some = names[first : first + MOST_AT_ONCE]
            self._unreleased.update(some)
            won = await self._context.ports.coordinator.acquire(some, node, seconds)
            self._unreleased.difference_update(some)
            if self._is_leaving:
                await self._release([*won])
                return
            held = {**held, **won}
            leases = {**leases, **dict.fromkeys(won, node)}
            self._hold(held)
            self._leases.replace(leases)  # so that the next round finds no change

    async def keep_alive(self) -> None:
        """Only renew the leases, from any event loop. Raises StoreUnavailable."""
        began = self._context.leases.now()
        held = await self._renew()
        owned = {lease_of(key) for key in self.owned if not self._is_assigned_by_channel(key.queue)}
        if owned.union(self._elections.leases) <= held.keys():
            self._extend(began)

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
        names += self._elections.leases
        names += self._unreleased.difference(map(lease_of, kept))
        await self._context.events.on_releasing(self.owned - kept)
        self._elections.elect(())
        self._own(kept)
        if names:
            await self._release(names)

    async def release_of(self, dead: Collection[str]) -> None:
        """Release the leases of nodes that are certainly dead. Raises StoreUnavailable."""
        coordinator = self._context.ports.coordinator
        leases = await coordinator.owners()
        for node in dead:
            names = [name for name, owner in leases.items() if owner == node]
            if names and (released := await coordinator.release(names, node)) is not None:
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
        self._unreleased.update(names)
        notification = await self._context.ports.coordinator.release(names, self._context.name)
        self._unreleased.difference_update(names)
        if notification is not None:
            self._context.channel.announce(notification)

    def _is_assigned_by_channel(self, queue: str) -> bool:
        """Return whether the channel, not leases, assigns the partitions of this queue
        (`on_gained`, `hand_over`, `on_lost`)."""
        context = self._context
        return context.channel.shares_partitions and queue not in context.kinds.ordered

    def _assigned_by_channel(self) -> frozenset[PartitionKey]:
        if not self._context.channel.shares_partitions:
            return frozenset()
        return frozenset(key for key in self.owned if self._is_assigned_by_channel(key.queue))

    def _hold(self, held: Mapping[str, int]) -> None:
        """Own what these leases are on."""
        self._held.replace(held)
        self._elections.elect(held)
        self._own(self._assigned_by_channel() | self._held.keys)

    def _own(self, owned: frozenset[PartitionKey]) -> None:
        if owned != self.owned:
            named = sorted(f"{q}/{p}" for q, p in owned) if len(owned) <= _MOST_LOGGED else []
            log.info("partitions changed", extra={"count": len(owned), "owned": named})
            self.owned = owned
            self._context.events.on_owned(owned)
