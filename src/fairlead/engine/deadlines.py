"""Deadlines of runs: one regular check of all runs in flight instead of a timer for each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fairlead.clock import MICROS
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.run import CancelReason, Run
from fairlead.engine.runs import Runs
from fairlead.model import INCIDENT_REPORTED, IncidentKind, IncidentReport

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
        self._check_stuck_at = 0.0

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
            for run in running:
                self._check(run, now)
            self._check_stuck(running, now)

    def _check(self, run: Run, now: float) -> None:
        """Stop the run if it is overdue. `now`: monotonic seconds."""
        if run.deadline is None:
            return
        if run.expires_at is None:
            # From here on without the wall clock, which may step while the handler runs.
            left = (run.deadline - self._context.clock.now()) / MICROS
            run.expires_at = now + left
        if run.expires_at > now:
            return
        if run.cancel_reason is not None:
            is_ours = run.cancel_reason is CancelReason.TIMEOUT
            if not is_ours or run.is_abandoned or now < run.expires_at + PATIENCE:
                return
            log.warning(
                "a handler ignores its timeout; its attempt ends, and its slot stays taken",
                extra={"task_id": run.claimed.id, "task_name": run.trigger.name},
            )
        self._runs.overdue(run)

    def _check_stuck(self, running: Sequence[Run], now: float) -> None:
        """Report the runs that are stuck, again while they are. `now`: monotonic seconds."""
        if now < self._check_stuck_at:
            return
        self._check_stuck_at = now + CHECK_STUCK_EVERY
        most: dict[str, float] = {}
        stuck = []
        for run in running:
            name = run.trigger.name
            if name not in most:
                most[name] = self._max_stuck(run)
            if run.seen_at is None:
                run.seen_at = now
            elif now > max(run.seen_at + most[name], run.report_at):
                run.report_at = now + INCIDENT_REPORTED
                stuck.append(self._stuck(run, most[name]))
                if not run.is_stuck:
                    run.is_stuck = True
                    self._context.observer.counted("stuck_runs")
        if stuck:
            self._context.events.on_incidents(stuck)

    def _max_stuck(self, run: Run) -> float:
        """Return the seconds after which the run is stuck: those of its task, else those that are
        far more than usual, else those of the settings."""
        handler = run.handler
        own = None if handler is None else handler.processing.max_stuck
        if own is not None:
            return own
        usual = self._runs.usual.patience(run.trigger.name)
        return self._context.settings.stuck_seconds if usual is None else usual / MICROS

    def _stuck(self, run: Run, seconds: float) -> IncidentReport:
        trigger, claimed = run.trigger, run.claimed
        return IncidentReport(
            kind=IncidentKind.STUCK,
            subject=claimed.id,
            details=(
                f"task {trigger.name!r} runs on node {self._context.name} for more than"
                f" {seconds:g} s; look at what its handler waits for, or set"
                " timeout= or max_stuck= of the task"
            ),
            since=run.started_at or 0,
            queue=trigger.queue,
            name=trigger.name,
            version=claimed.version,
        )
