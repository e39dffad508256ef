"""Stops runs at their deadline: one look at what is in flight, often enough, instead of a timer for
each run."""

from __future__ import annotations

import logging

from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import Running

log = logging.getLogger("fairlead.deadlines")

LOOK_EVERY = 0.05
"""Seconds: how late a timeout may strike."""


class Deadlines(Running):
    """Watches the executions of this node."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Watch for as long as the node lives, where a handler has a timeout."""
        context = self._context
        handlers = context.served.handlers.values()
        if all(handler.processing.timeout is None for handler in handlers):
            return
        while True:
            await context.clock.sleep(LOOK_EVERY)
            now = context.clock.now()
            for execution in list(context.in_flight.values()):
                deadline = execution.deadline
                if deadline is None or deadline > now or execution.cancel_reason is not None:
                    continue
                if execution.is_running:  # it still runs, it does not only wait for its completion
                    log.warning(
                        "task ran into its timeout",
                        extra={
                            "task_id": execution.claimed.id,
                            "task_name": execution.trigger.name,
                        },
                    )
                    context.events.on_overdue(execution)
