"""Weights, limits and pauses that people and policies set on queues, applied to a node."""

from __future__ import annotations

import logging

from fairlead.engine.context import NodeContext, View
from fairlead.engine.intake import Intake

log = logging.getLogger("fairlead.node")


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
