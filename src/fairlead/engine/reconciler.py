"""Tasks that this node holds without knowing it: found in the store, and handed back."""

from __future__ import annotations

import asyncio
import logging

from fairlead.engine.claimers import TaskClaimer
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import Running
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable

log = logging.getLogger("fairlead.node")

_WAIT_SECONDS = 1.0


class Reconciler(Running):
    """Looks after a claim whose answer was lost."""

    def __init__(self, context: NodeContext, claimer: TaskClaimer, ordering: Ordering) -> None:
        self._context = context
        self._claimer = claimer
        self._ordering = ordering
        self._asked = asyncio.Event()

    @property
    def is_asked(self) -> bool:
        """Whether the store may still say that this node holds tasks which it does not know."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Have the store asked soon."""
        self._asked.set()

    async def run(self) -> None:
        """Hand back what the store says this node holds, but no part of it knows."""
        context = self._context
        while True:
            await self._asked.wait()
            try:
                await context.clock.sleep(_WAIT_SECONDS)
                # Cleared before the look: a claim that fails meanwhile asks again.
                self._asked.clear()
                held = await context.store.held(context.name)
                known = context.in_flight.keys() | self._claimer.asked()
                unknown = [(task_id, version) for task_id, version in held if task_id not in known]
                if unknown:
                    log.warning(
                        "handing back tasks claimed unknowingly", extra={"tasks": len(unknown)}
                    )
                    notification = await context.store.hand_back(context.name, unknown)
                    if notification is not None:
                        context.channel.announce(notification)
                self._ordering.look()
                # The wake of an earlier, unanswered try may never have gone out.
                context.channel.redeliver()
            except StoreUnavailable:
                self._asked.set()
