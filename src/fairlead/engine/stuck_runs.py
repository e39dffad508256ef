"""Stuck runs: report each run of this node that takes longer than its `max_stuck`."""

from __future__ import annotations

from fairlead.engine.context import NodeContext
from fairlead.engine.execution import Execution
from fairlead.engine.lifecycle import SimplePart
from fairlead.model import IncidentKind, IncidentReport

CHECK_EVERY = 5.0
"""Seconds between two checks of all runs in flight."""


class StuckRuns(SimplePart):
    """Report incidents of the kind `stuck`, once for each run. The pollers resume or fail the task,
    if its policy says so."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._seen: dict[tuple[str, int], float] = {}
        """Instants (monotonic seconds) at which a check first saw the runs in flight."""
        self._reported: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._context.clock.sleep(CHECK_EVERY)
            self._check()

    def _check(self) -> None:
        context, now = self._context, self._context.clock.monotonic()
        running = {
            (execution.claimed.id, execution.claimed.version): execution
            for execution in context.in_flight.values()
            if execution.is_running
        }
        self._seen = {run: self._seen.get(run, now) for run in running}
        stuck = {
            run: execution
            for run, execution in running.items()
            if now - self._seen[run] > self._max_stuck(execution)
        }
        new = [run for key, run in stuck.items() if key not in self._reported]
        self._reported = set(stuck)
        if new:
            context.observer.counted("stuck_runs", len(new))
            context.events.on_incidents([self._report(execution) for execution in new])

    def _max_stuck(self, execution: Execution) -> float:
        """Return the seconds after which the run is stuck."""
        handler = execution.handler
        own = None if handler is None else handler.processing.max_stuck
        return self._context.settings.stuck_seconds if own is None else own

    def _report(self, execution: Execution) -> IncidentReport:
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
