"""What people and policies have set on queues: weights, limits and pauses, applied to a node."""

from __future__ import annotations

import logging

from fairlead.engine.backlogs import Backlogs
from fairlead.engine.context import NodeContext
from fairlead.engine.view import View

log = logging.getLogger("fairlead.node")


class Controls:
    """Applies each view of the membership."""

    def __init__(self, context: NodeContext, backlogs: Backlogs) -> None:
        self._context = context
        self._backlogs = backlogs
        self.paused: frozenset[str] = frozenset()
        """Queues that are paused here."""

    def apply(self, view: View) -> None:
        """Take over weights, limits and pauses that have changed."""
        context = self._context
        for queue, weights in view.weights.items():
            self._backlogs.set_weights(queue, weights)
        for queue, limits in view.limits.items():
            if limits != context.ledger.limits(queue):
                context.table.set_limits(queue, limits)
                log.info("limits changed", extra={"queue": queue, "keys": len(limits)})
                context.events.on_ready()
        paused = frozenset(queue for queue, settings in view.queues.items() if settings.paused)
        for queue in paused - self.paused:
            context.table.pause(queue)
            log.info("queue paused", extra={"queue": queue})
        for queue in self.paused - paused:
            context.table.resume(queue)
            log.info("queue resumed", extra={"queue": queue})
            context.events.on_ready()
        self.paused = paused
