"""Deadlines of runs: one regular check of all runs in flight instead of a timer for each."""

from __future__ import annotations

import logging

from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart

log = logging.getLogger("fairlead.deadlines")

CHECK_EVERY = 0.05
"""Seconds between two checks: the most by which a timeout is late."""


class Deadlines(SimplePart):
    """Stop the runs of this node that exceed their timeouts."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Check until cancelled, if any handler has a timeout."""
        context = self._context
        handlers = context.served.handlers.values()
        if all(handler.processing.timeout is None for handler in handlers):
            return
        while True:
            await context.clock.sleep(CHECK_EVERY)
            now = context.clock.now()
            for execution in list(context.in_flight.values()):
                deadline = execution.deadline
                if deadline is None or deadline > now or execution.cancel_reason is not None:
                    continue
                if execution.is_running:  # not only waiting for its completion
                    log.warning(
                        "task ran into its timeout",
                        extra={
                            "task_id": execution.claimed.id,
                            "task_name": execution.trigger.name,
                        },
                    )
                    context.events.on_overdue(execution)
