"""Deadlines of runs: one regular check of all runs in flight instead of a timer for each."""

from __future__ import annotations

import logging

from fairlead.clock import MICROS
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import CancelReason, Execution
from fairlead.engine.lifecycle import SimplePart

log = logging.getLogger("fairlead.deadlines")

CHECK_EVERY = 0.05
"""Seconds between two checks: the most by which a timeout is late."""

PATIENCE = 10.0
"""Seconds that an interrupted handler gets to clean up. Then its attempt ends, even if the handler
still runs."""


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
            now = context.clock.monotonic()
            for execution in list(context.in_flight.values()):
                if execution.is_running:  # an ended run only waits for its completion
                    self._check(execution, now)

    def _check(self, execution: Execution, now: float) -> None:
        """Stop the run if it is overdue. `now`: monotonic seconds."""
        if execution.deadline is None:
            return
        if execution.expires_at is None:
            # From here on without the wall clock, which may step while the handler runs.
            left = (execution.deadline - self._context.clock.now()) / MICROS
            execution.expires_at = now + left
        if execution.expires_at > now:
            return
        if execution.cancel_reason is None:
            message = "task ran into its timeout"
        elif (
            execution.cancel_reason is CancelReason.TIMEOUT
            and not execution.is_abandoned
            and now >= execution.expires_at + PATIENCE
        ):
            message = "a handler ignores its timeout; its attempt ends, and its slot stays taken"
        else:
            return
        log.warning(
            message,
            extra={"task_id": execution.claimed.id, "task_name": execution.trigger.name},
        )
        self._context.events.on_overdue(execution)
