"""The reconciler: hand back tasks that the store gave to this node without its knowledge."""

from __future__ import annotations

import asyncio
import logging

from fairlead.engine.claimers import TaskClaimer
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable

log = logging.getLogger("fairlead.node")

_WAIT_SECONDS = 1.0


class Reconciler(SimplePart):
    """Find and hand back the tasks of a claim whose result was lost."""

    def __init__(self, context: NodeContext, claimer: TaskClaimer, ordering: Ordering) -> None:
        self._context = context
        self._claimer = claimer
        self._ordering = ordering
        self._asked = asyncio.Event()

    @property
    def is_asked(self) -> bool:
        """Whether this node may hold tasks in the store that it does not know of."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Request a reconciliation."""
        self._asked.set()

    async def run(self) -> None:
        """Hand back tasks that this node holds in the store but not in memory, until cancelled."""
        context = self._context
        while True:
            await self._asked.wait()
            try:
                await context.clock.sleep(_WAIT_SECONDS)
                # Clear before reading, so that a claim that fails meanwhile asks again.
                self._asked.clear()
                held = await context.store.held(context.name)
                known = context.in_flight.keys() | self._claimer.asked()
                unknown = [(task_id, version) for task_id, version in held if task_id not in known]
                if unknown:
                    log.warning(
                        "handing back tasks of a claim whose result was lost",
                        extra={"tasks": len(unknown)},
                    )
                    notification = await context.store.hand_back(context.name, unknown)
                    if notification is not None:
                        context.channel.announce(notification)
                self._ordering.poke()
                # The notification of an earlier try without a result may never have gone out.
                context.channel.redeliver()
            except StoreUnavailable:
                self._asked.set()
