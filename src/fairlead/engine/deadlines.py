"""Stops runs at their deadline: one look at what is in flight, often enough, instead of a timer for each run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fairlead.clock import Clock
from fairlead.engine.execution import CancelReason, Execution

log = logging.getLogger("fairlead.deadlines")

LOOK_EVERY = 0.05
"""Seconds: how late a timeout may strike."""


class Deadlines:
    """Watches the executions of this node."""

    def __init__(self, in_flight: Mapping[str, Execution], clock: Clock) -> None:
        self._in_flight = in_flight
        self._clock = clock

    async def run(self) -> None:
        """Watch for as long as the node lives."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            now = self._clock.now()
            for execution in list(self._in_flight.values()):
                deadline = execution.deadline
                if deadline is not None and deadline <= now and execution.current is not None:
                    log.warning(
                        "task ran into its timeout",
                        extra={"task_id": execution.grabbed.id, "task_name": execution.trigger.name},
                    )
                    execution.cancel(CancelReason.TIMEOUT)
