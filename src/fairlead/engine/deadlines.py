"""Stops runs at their deadline: one look at what is in flight, often enough, instead of a timer for
each run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from fairlead.clock import Clock
from fairlead.engine.execution import Execution

log = logging.getLogger("fairlead.deadlines")

LOOK_EVERY = 0.05
"""Seconds: how late a timeout may strike."""


class Deadlines:
    """Watches the executions of this node."""

    def __init__(
        self, in_flight: Mapping[str, Execution], overdue: Callable[[Execution], None], clock: Clock
    ) -> None:
        self._in_flight = in_flight
        self._overdue = overdue
        self._clock = clock

    async def run(self) -> None:
        """Watch for as long as the node lives."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            now = self._clock.now()
            for execution in list(self._in_flight.values()):
                deadline = execution.deadline
                if deadline is None or deadline > now or execution.cancel_reason is not None:
                    continue
                if execution.is_running:  # it still runs, it does not only wait for its completion
                    log.warning(
                        "task ran into its timeout",
                        extra={
                            "task_id": execution.grabbed.id,
                            "task_name": execution.trigger.name,
                        },
                    )
                    self._overdue(execution)
