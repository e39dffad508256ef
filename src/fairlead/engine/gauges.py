"""Gauges of a node: how much waits in memory, and how much runs."""

from __future__ import annotations

from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.ordered.queues import OrderedQueues

_EVERY_SECONDS = 1.0


class Gauges(SimplePart):
    """Report the gauges to the observer once a second."""

    def __init__(self, context: NodeContext, ordered: OrderedQueues) -> None:
        self._context = context
        self._ordered = ordered

    async def run(self) -> None:
        """Measure until cancelled."""
        context = self._context
        while True:
            context.observer.gauges(len(context.table), len(context.in_flight))
            budget = context.look_ahead.budget
            context.observer.memory(budget.granted, budget.size)
            if gauges := self._ordered.gauges():
                context.observer.ordered(gauges)
            await context.clock.sleep(_EVERY_SECONDS)
