"""The membership: send heartbeats, and read what people and other nodes changed."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence

from fairlead.clock import MICROS
from fairlead.core.sharding.shares import Members
from fairlead.engine.claimers import TaskClaimer
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.view import Limits, View, Weights
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.ports.cluster_state import NodeRecord, QueueSettings

log = logging.getLogger("fairlead.membership")

HEARTBEAT_SECONDS = 2.5
SILENT_SECONDS = 10.0
"""Seconds without a heartbeat after which other nodes treat a node as dead."""

_AHEAD = round(5.0 * MICROS)
"""A heartbeat this many microseconds in the future means that the node will restart. A smaller
difference may come from the clocks of the nodes."""

_MARK = "#"


def name_of(identity: str) -> str:
    """Return a name for one start of a process that keeps its identity over restarts. Raise
    ConfigurationError for an identity that cannot be used."""
    if not identity.strip() or _MARK in identity:
        raise ConfigurationError(f"worker name {identity!r}: use a text without {_MARK}")
    return f"{identity}{_MARK}{uuid.uuid4().hex[:8]}"


def identity_of(node: str) -> str:
    """Return the identity of a node, the same for all its starts; without one, the node's name."""
    return node.partition(_MARK)[0]


class Membership(SimplePart):
    """Send heartbeats, read the settings of queues, and find claimed tasks this node has lost."""

    def __init__(
        self,
        context: NodeContext,
        claimer: TaskClaimer,
    ) -> None:
        self._context = context
        self._node = context.name
        self._store = context.store
        self._claimer = claimer
        self._partitions = {queue.name: queue.partitions for queue in context.served.queues}
        self._poked = asyncio.Event()
        self.is_store_reachable = True
        """Whether the last heartbeat reached the store."""
        self._are_queues_registered = False
        self._settings: tuple[object, Mapping[str, QueueSettings]] = (None, {})
        """Settings of the served queues, with the mark under which they were read."""
        self._members: tuple[list[tuple[str, list[str]]], frozenset[str], Members] | None = None
        """The members computed last, with the nodes that they were computed from."""
        self._registered: list[str] | None = None
        """Queues in the store's record of this node; None before the first registration."""
        self._is_leaving = False
        self._weights: dict[str, int] = {}
        """Version of the weights and limits read last, by queue."""

    def poke(self) -> None:
        """Send a heartbeat now, because a person or another node changed something."""
        self._poked.set()

    def learn_partitions(self, queue: str, partitions: int) -> None:
        """Register a number of partitions that a submitter uses and this node does not know, so
        that no task waits in a partition that nobody reads."""
        if partitions > self._partitions.get(queue, partitions):
            self._partitions[queue] = partitions
            self._are_queues_registered = False
            self.poke()

    async def keep_alive(self) -> None:
        """Send only the heartbeat, from any event loop. Raises StoreUnavailable."""
        await self._store.heartbeat(self._node, self._context.clock.now())

    async def leave(self) -> None:
        """Serve no queue from now on, so that other nodes take the partitions, unless the node will
        restart. Raise StoreUnavailable."""
        self._is_leaving = True
        await self._send_heartbeat()

    async def drop_earlier_starts(self) -> None:
        """Drop earlier starts of this node that hold no task. Raise StoreUnavailable."""
        if _MARK not in self._node:
            return
        for record in await self._store.database.read(self._store.nodes()):
            is_earlier = record.node != self._node and identity_of(record.node) == identity_of(
                self._node
            )
            if is_earlier and not await self._store.held(record.node):
                self._context.channel.announce(await self._store.drop_node(record.node))

    async def _send_heartbeat(self) -> None:
        context = self._context
        queues, now = sorted(self._partitions), context.clock.now()
        if self._is_leaving and context.settings.restart_seconds:
            now += round(context.settings.restart_seconds * MICROS)
        elif self._is_leaving:
            queues = []
        if self._registered != queues or not await self._store.heartbeat(self._node, now):
            names = sorted(context.served.handlers)
            joined = await self._store.register_node(self._node, queues, names, now)
            context.channel.announce(joined)
            self._registered = queues

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            self._poked.clear()
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    await self.beat()
                self.is_store_reachable = True
            except (StoreUnavailable, TimeoutError) as error:
                self.is_store_reachable = False
                log.warning("no heartbeat: the store is unavailable", extra={"error": str(error)})
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._poked.wait()
            except TimeoutError:
                pass

    async def _queues(self) -> Mapping[str, QueueSettings]:
        if not self._are_queues_registered:
            registered = await self._store.register_queues(self._partitions)
            self._are_queues_registered = True
            self._settings = (None, registered)
            return registered
        mark = await self._store.database.read(self._store.settings_mark())
        seen, queues = self._settings
        if seen != mark:
            found = await self._store.database.read(self._store.queue_settings())
            queues = {queue: found[queue] for queue in self._partitions}
            self._settings = (mark, queues)
        return queues

    async def _changed(
        self, queues: Mapping[str, QueueSettings]
    ) -> tuple[dict[str, Weights], dict[str, Limits]]:
        changed = [
            queue for queue, found in queues.items() if found.version != self._weights.get(queue, 0)
        ]
        weights: dict[str, Weights] = {}
        limits: dict[str, Limits] = {}
        for queue in changed:
            weights[queue] = await self._store.database.read(self._store.weights(queue))
            limits[queue] = await self._store.database.read(self._store.limits(queue))
        # Set last: if the store fails before, the next heartbeat reads all of them again.
        self._weights.update((queue, queues[queue].version) for queue in changed)
        return weights, limits

    def _members_of(self, living: Sequence[NodeRecord], restarting: frozenset[str]) -> Members:
        """Return the nodes of each served queue, the same object as long as nothing changed."""
        nodes = [(record.node, record.queues) for record in living]
        if self._members is not None and self._members[:2] == (nodes, restarting):
            return self._members[2]
        by_queue: dict[str, set[str]] = {queue: set() for queue in self._partitions}
        for record in living:
            for queue in self._partitions.keys() & record.queues:
                by_queue[queue].add(identity_of(record.node))
        members = Members(
            {queue: frozenset(members) for queue, members in by_queue.items()},
            frozenset(map(identity_of, restarting)),
        )
        self._members = (nodes, restarting, members)
        return members

    async def beat(self) -> None:
        """Send one heartbeat, and read what changed."""
        now = self._context.clock.now()
        await self._send_heartbeat()
        if ended := self._claimer.ended_batches():
            await self._store.drop_claims(self._node, ended)
        queues = await self._queues()
        silent = await self._store.silent_nodes(now, round(SILENT_SECONDS * MICROS))
        nodes = await self._store.database.read(self._store.nodes())
        living = [each for each in nodes if each.node not in silent]
        # A node that will restart has set its heartbeat ahead.
        restarting = frozenset(each.node for each in living if each.heartbeat_at > now + _AHEAD)
        members = self._members_of(living, restarting)
        present = frozenset(each.node for each in living) - restarting
        names = frozenset(name for each in living for name in each.names)
        changed = await self._changed(queues)
        self._context.events.on_view(View(queues, *changed, members, present, names))
        held = list(self._claimer.held())
        if held:
            kept = await self._store.still_held(self._node, held)
            lost = set(held) - kept
            if lost:
                # This node ended some of these itself; only tasks still in flight were taken away.
                self._context.events.on_taken_away(lost)
