"""This node's life as the others see it, and the cluster's wishes as this node hears them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping

from fairlead.clock import MICROS
from fairlead.engine.claimers import TaskClaimer
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import Running
from fairlead.engine.view import Limits, View, Weights
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.ports.cluster_state import QueueSettings

log = logging.getLogger("fairlead.membership")

HEARTBEAT_SECONDS = 2.5
SILENT_SECONDS = 10.0
"""A node not heard of for this long counts as dead."""

_MARK = "#"


def name_of(identity: str) -> str:
    """A name for one start of a process that keeps its identity over restarts. Raises
    ConfigurationError."""
    if not identity.strip() or _MARK in identity:
        raise ConfigurationError(f"worker name {identity!r}: use a text without {_MARK}")
    return f"{identity}{_MARK}{uuid.uuid4().hex[:8]}"


def identity_of(node: str) -> str:
    """Who a node is, whichever start of it this is; a node without an identity is its name."""
    return node.partition(_MARK)[0]


class Membership(Running):
    """Beats, reads what people have set, and finds out which claimed tasks are no longer this
    node's."""

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
        self._look = asyncio.Event()
        self._is_registered = False
        self._is_retired = False
        self._weights: dict[str, int] = {}
        """By queue, the version of its weights and limits that was read last."""

    def look(self) -> None:
        """A person or another node changed something: look now."""
        self._look.set()

    async def retire(self) -> None:
        """From now on it serves no queue: the others share the partitions without it, unless it is
        to come back. Raises StoreUnavailable."""
        self._is_retired = True
        await self._say_so()

    async def forget_earlier_starts(self) -> None:
        """Of this node, those that hold nothing. Raises StoreUnavailable."""
        if _MARK not in self._node:
            return
        for record in await self._store.database.read(self._store.nodes()):
            is_earlier = record.node != self._node and identity_of(record.node) == identity_of(
                self._node
            )
            if is_earlier and not await self._store.held(record.node):
                await self._store.drop_node(record.node)

    async def _say_so(self) -> None:
        queues, now = sorted(self._partitions), self._context.clock.now()
        if self._is_retired and self._context.settings.restart_seconds:
            now += round(self._context.settings.restart_seconds * MICROS)
        elif self._is_retired:
            queues = []
        await self._store.heartbeat(self._node, queues, now)

    async def run(self) -> None:
        """Beat for as long as the node lives."""
        while True:
            self._look.clear()
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    await self.beat()
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("no heartbeat: the store is away", extra={"error": str(error)})
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._look.wait()
            except TimeoutError:
                pass

    async def _queues(self) -> Mapping[str, QueueSettings]:
        if self._is_registered:
            statuses = await self._store.database.read(self._store.queue_settings())
            return {queue: statuses[queue] for queue in self._partitions}
        queues = await self._store.register_queues(self._partitions)
        self._is_registered = True
        return queues

    async def _changed(
        self, queues: Mapping[str, QueueSettings]
    ) -> tuple[dict[str, Weights], dict[str, Limits]]:
        changed = [
            queue
            for queue, found in queues.items()
            if found.weights_version != self._weights.get(queue, 0)
        ]
        weights: dict[str, Weights] = {}
        limits: dict[str, Limits] = {}
        for queue in changed:
            weights[queue] = await self._store.database.read(self._store.weights(queue))
            limits[queue] = await self._store.database.read(self._store.limits(queue))
        # Only now: when the store goes away in between, all are read again.
        self._weights.update((queue, queues[queue].weights_version) for queue in changed)
        return weights, limits

    async def beat(self) -> None:
        """One round."""
        now = self._context.clock.now()
        await self._say_so()
        if ended := self._claimer.ended_batches():
            await self._store.drop_claims(self._node, ended)
        queues = await self._queues()
        silent = await self._store.silent_nodes(now, round(SILENT_SECONDS * MICROS))
        nodes = await self._store.database.read(self._store.nodes())
        members = frozenset(
            identity_of(record.node)
            for record in nodes
            if record.node not in silent and not self._partitions.keys().isdisjoint(record.queues)
        )
        self._context.events.on_view(View(queues, *await self._changed(queues), members))
        held = list(self._claimer.held())
        if held:
            still = await self._store.still_held(self._node, held)
            gone = set(held) - still
            if gone:
                # Ended meanwhile by this node itself, or taken away: only those still in flight
                # here matter.
                self._context.events.on_taken_away(gone)
