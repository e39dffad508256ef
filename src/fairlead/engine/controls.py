"""Weights, limits and pauses that people and policies set on queues: read them, and apply them to a
node."""

from __future__ import annotations

import asyncio
import logging

from fairlead.engine.context import Limits, NodeContext, View, Weights
from fairlead.engine.intake import Intake
from fairlead.ports.cluster import QueueSettings, SettingsMark

log = logging.getLogger("fairlead.node")


_Changes = tuple[dict[str, QueueSettings], dict[str, Weights], dict[str, Limits]]
"""Changed settings by queue, with the weights and limits by fairness key that changed."""


class SettingsReader:
    """Register the served queues, and read which of their settings changed."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self.queues = sorted(queue.name for queue in context.served.queues)
        """Names of the served queues."""
        self._partitions = {queue.name: queue.partitions for queue in context.served.queues}
        self._unregistered: dict[str, int] = {
            queue: partitions
            for queue, partitions in self._partitions.items()
            # Submitters register ordered queues; a node must not undo a repartition.
            if queue not in context.kinds.ordered
        }
        """Queues to register, with their numbers of partitions."""
        self._mark: SettingsMark | None = None
        """Mark of the settings read last; None to read them again."""
        self._server: str | None = None
        """Server of the last mark; None before the first one."""
        self._known: dict[str, QueueSettings] = {}
        """Settings read last, by queue."""
        self._changes: _Changes = ({}, {}, {})
        """Changes since `read` returned the last ones."""

    def learn_partitions(self, queue: str, partitions: int) -> bool:
        """Take over a number of partitions that a submitter uses; return whether it is new to this
        node, and is to be registered."""
        if partitions <= self._partitions.get(queue, partitions):
            return False
        self._partitions = {**self._partitions, queue: partitions}
        self._unregistered = {**self._unregistered, queue: partitions}
        return True

    def read_again(self) -> None:
        """Read all settings at the next `read`."""
        self._mark = None

    async def register_queues(self) -> None:
        """Register new queues, and numbers of partitions. Raise StoreUnavailable."""
        if registering := self._unregistered:
            await self._context.cluster.register_queues(registering)
            # Another number of partitions may have been learned meanwhile.
            left = self._unregistered.items() - registering.items()
            self._unregistered = dict(left)

    async def read(self, mark: SettingsMark) -> _Changes:
        """Return what changed by this mark since the last call that returned. Raise
        StoreUnavailable; the next call then goes on from there."""
        if mark.server != self._server:
            if self._server:  # empty until a queue is registered
                self._context.events.on_claim_unknown()
            self._server = mark.server
        if mark != self._mark:
            await self._read_changes()
            self._mark = mark
        changes, self._changes = self._changes, ({}, {}, {})
        return changes

    async def _read_changes(self) -> None:
        cluster, tables = self._context.cluster, self._context.ports.tables
        changed, weights, limits = self._changes
        found = await cluster.database.read(cluster.queue_settings())
        if lost := {each: self._partitions[each] for each in self.queues if each not in found}:
            # A failover may lose what was registered.
            found |= await cluster.register_queues(lost)
        for queue in self.queues:
            settings, known = found[queue], self._known.get(queue)
            if settings == known:
                continue
            if tables and settings.version != (known.version if known else 0):
                weights[queue] = await tables.database.read(tables.weights(queue))
                limits[queue] = await tables.database.read(tables.limits(queue))
                await asyncio.sleep(0)  # a read may block the loop
            changed[queue] = self._known[queue] = settings


class Controls:
    """Apply the settings of each new view."""

    def __init__(self, context: NodeContext, intake: Intake) -> None:
        self._context = context
        self._intake = intake
        self.paused: set[str] = set()
        """Names of the paused queues."""
        self._known: set[str] = set()
        """Queues whose settings were read."""

    def apply(self, view: View) -> None:
        """Apply weights, limits and pauses that changed."""
        context = self._context
        for queue, weights in view.weights.items():
            self._intake.set_weights(queue, weights)
        for queue, limits in view.limits.items():
            if limits != context.ledger.limits(queue):
                context.table.set_limits(queue, limits)
                self._intake.lanes.columns_changed(queue)
                log.info("limits changed", extra={"queue": queue, "keys": len(limits)})
                context.events.on_ready()
        self._known.update(view.queues)
        for queue, settings in view.queues.items():
            if settings.paused and queue not in self.paused:
                self._pause(queue, "by its settings")
            elif not settings.paused and queue in self.paused:
                self.paused.remove(queue)
                context.table.resume(queue)
                log.info("queue resumed", extra={"queue": queue})
                context.events.on_ready()

    def is_paused(self, queue: str) -> bool:
        """Return whether a queue is paused."""
        return queue in self.paused

    def keep_pause(self, queue: str) -> None:
        """Pause a queue that was paused for the last owner of a partition, until its settings can
        be read."""
        if queue not in self._known and queue not in self.paused:
            self._pause(queue, "as it was last known; its settings cannot be read yet")

    def _pause(self, queue: str, reason: str) -> None:
        self.paused.add(queue)
        self._context.table.pause(queue)
        log.info("queue paused", extra={"queue": queue, "reason": reason})
