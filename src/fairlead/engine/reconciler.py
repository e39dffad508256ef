"""The reconciler: hand back tasks that this node holds in the store but does not know of."""

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
    """Find and hand back the tasks of a claim whose result was lost, and those whose completion a
    server has lost."""

    def __init__(self, context: NodeContext, claimer: TaskClaimer, ordering: Ordering) -> None:
        self._context = context
        self._claimer = claimer
        self._ordering = ordering
        self._requested = asyncio.Event()

    @property
    def is_requested(self) -> bool:
        """Whether this node may hold tasks in the store that it does not know of."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request a reconciliation."""
        self._requested.set()

    async def run(self) -> None:
        """Hand back tasks that this node holds in the store but not in memory, until cancelled."""
        context = self._context
        while True:
            await self._requested.wait()
            try:
                await context.clock.sleep(_WAIT_SECONDS)
                # Clear before reading: a claim that fails meanwhile requests another round.
                self._requested.clear()
                held = await context.store.held(context.name)
                known = context.in_flight.keys() | self._claimer.being_claimed()
                unknown = [(task_id, version) for task_id, version in held if task_id not in known]
                if unknown:
                    log.warning(
                        "handing back tasks that this node holds in the store but does not run",
                        extra={"tasks": len(unknown)},
                    )
                    notification = await context.store.hand_back(context.name, unknown)
                    if notification is not None:
                        context.channel.announce(notification)
                self._ordering.poke()
                # An earlier hand-back may have succeeded without sending its notification.
                context.channel.redeliver()
            except StoreUnavailable:
                self._requested.set()
            except asyncio.CancelledError:
                self._requested.set()  # the node ends, and may still hold these tasks
                raise
