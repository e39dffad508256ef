"""The dispatcher: take triggers and slots, claim their tasks, start their runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from fairlead.core.limits.slot_ledger import PolicyFailed
from fairlead.engine.claimers import Claimers
from fairlead.engine.context import NodeContext
from fairlead.engine.granting import Granting
from fairlead.engine.helping import Helping
from fairlead.engine.intake import Intake
from fairlead.engine.runs import Runs
from fairlead.model import Trigger
from fairlead.pauses import event_or_pause

MOST_AT_ONCE = 500
"""Maximum number of tasks in one claim."""

STOP_SECONDS = 10.0
"""Seconds that the last claim may take when the node stops."""


class Dispatcher:
    """Claim one batch at a time; slots that are released meanwhile go into the next batch."""

    def __init__(
        self,
        context: NodeContext,
        claimers: Claimers,
        intake: Intake,
        runs: Runs,
        granting: Granting,
        helping: Helping,
    ) -> None:
        self._context = context
        self._claimers = claimers
        self._intake = intake
        self._runs = runs
        self._granting = granting
        self._helping = helping
        self._wanted = asyncio.Event()
        self._is_stopping = False
        self._stopped = asyncio.Event()

    def wake(self) -> None:
        """Dispatch again: a trigger came, or a slot was released."""
        self._wanted.set()

    async def run(self) -> None:
        """Dispatch until `stop`."""
        try:
            while not self._is_stopping:
                if not await self._dispatch():
                    if len(self._context.table):
                        self._granting.on_spare()
                        if self._context.ledger.room > 0:
                            self._intake.lanes.on_stalled()
                    self._helping.on_free_slots()
                    await self._wait()
        finally:
            self._stopped.set()

    async def stop(self) -> None:
        """Begin no further claim, and wait for the current one: a cancelled claim could leave tasks
        that no node knows of."""
        self._is_stopping = True
        self._wanted.set()
        if not await event_or_pause(self._stopped, STOP_SECONDS):
            self._context.events.on_claim_unknown()

    async def _wait(self) -> None:
        found = self._context.table.next_retry()
        retry_at = min(self._claimers.retry(), math.inf if found is None else found)
        await event_or_pause(self._wanted, retry_at - self._context.clock.monotonic())

    async def _dispatch(self) -> bool:
        """Dispatch one batch; return False when no task may run now."""
        self._wanted.clear()
        self._claimers.retry()
        context, table = self._context, self._context.table
        if context.is_behind:
            return False
        triggers, broken = table.take(MOST_AT_ONCE, context.clock.monotonic())
        if not triggers and not broken:
            return False
        if triggers:
            await self._start(triggers)
        if broken:
            await self._record_broken(broken)
        return True

    async def _start(self, triggers: Sequence[Trigger]) -> None:
        for claimer, batch in self._claimers.split(triggers):
            if runs := await claimer.claim(batch, holds_slots=True):
                self._runs.start(runs)

    async def _record_broken(self, broken: Sequence[PolicyFailed]) -> None:
        """Claim tasks whose concurrency policies raised, and record their failed attempts. These
        tasks have no slots."""
        errors = {failure.trigger.id: failure.error for failure in broken}
        triggers = [failure.trigger for failure in broken]
        for claimer, batch in self._claimers.split(triggers):
            for run in await claimer.claim(batch, holds_slots=False):
                self._runs.policy_failed(run, errors[run.claimed.id])
