"""Deadlines of runs: one regular check of all runs in flight instead of a timer for each."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from fairlead.clock import MICROS
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import CancelReason, Execution
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.runs import Runs
from fairlead.model import IncidentKind, IncidentReport

log = logging.getLogger("fairlead.deadlines")

CHECK_EVERY = 0.05
"""Seconds between two checks: the most by which a timeout is late."""

CHECK_STUCK_EVERY = 5.0
"""Seconds between two checks if no handler has a timeout."""

PATIENCE = 10.0
"""Seconds that an interrupted handler gets to clean up. Then its attempt ends, even if the handler
still runs."""


class Deadlines(SimplePart):
    """Stop the runs of this node that exceed their timeouts. Report an incident of the kind `stuck`
    for each run that takes longer than its `max_stuck`; the pollers resume or fail the task, if its
    policy says so."""

    def __init__(self, context: NodeContext, runs: Runs) -> None:
        self._context = context
        self._runs = runs

    async def run(self) -> None:
        """Check until cancelled."""
        context = self._context
        handlers = context.served.handlers.values()
        has_timeouts = any(handler.processing.timeout is not None for handler in handlers)
        every = CHECK_EVERY if has_timeouts else CHECK_STUCK_EVERY
        while True:
            await context.clock.sleep(every)
            now = context.clock.monotonic()
            # An ended run only waits for its completion.
            running = [each for each in context.in_flight.values() if each.is_running]
            for execution in running:
                self._check(execution, now)
            self._check_stuck(running, now)

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
        if execution.cancel_reason is not None:
            is_ours = execution.cancel_reason is CancelReason.TIMEOUT
            if not is_ours or execution.is_abandoned or now < execution.expires_at + PATIENCE:
                return
            log.warning(
                "a handler ignores its timeout; its attempt ends, and its slot stays taken",
                extra={"task_id": execution.claimed.id, "task_name": execution.trigger.name},
            )
        self._runs.overdue(execution)

    def _check_stuck(self, running: Sequence[Execution], now: float) -> None:
        """Report the runs that are stuck, each once. `now`: monotonic seconds."""
        stuck = []
        for execution in running:
            if execution.stuck_at is None:
                execution.stuck_at = now + self._max_stuck(execution)
            elif now > execution.stuck_at:
                execution.stuck_at = math.inf
                stuck.append(self._stuck(execution))
        if stuck:
            self._context.observer.counted("stuck_runs", len(stuck))
            self._context.events.on_incidents(stuck)

    def _max_stuck(self, execution: Execution) -> float:
        """Return the seconds after which the run is stuck."""
        handler = execution.handler
        own = None if handler is None else handler.processing.max_stuck
        return self._context.settings.stuck_seconds if own is None else own

    def _stuck(self, execution: Execution) -> IncidentReport:
        trigger, claimed = execution.trigger, execution.claimed
        return IncidentReport(
            kind=IncidentKind.STUCK,
            subject=claimed.id,
            details=(
                f"task {trigger.name!r} runs on node {self._context.name} for more than"
                f" {self._max_stuck(execution):g} s; look at what its handler waits for, or set"
                " timeout= or max_stuck= of the task"
            ),
            since=execution.started_at or 0,
            queue=trigger.queue,
            name=trigger.name,
            version=claimed.version,
        )
