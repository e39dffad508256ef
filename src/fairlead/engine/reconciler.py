"""The reconciler: hand back tasks that this node holds in the store but does not know of."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fairlead.batch_writer import BatchWriter, Refusal
from fairlead.clock import MICROS
from fairlead.engine.claimers import TaskClaimer
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable, WriteRefused
from fairlead.pauses import TimedEvent
from fairlead.ports.notification import Notification
from fairlead.ports.task_records import TaskVersion
from fairlead.refused_writes import RefusedWrites

log = logging.getLogger("fairlead.node")

_WAIT_SECONDS = 1.0

LATE_SECONDS = 30.0
"""Seconds after a request until another round. A server may carry out a claim long after the
connection broke, for example when another session locked the row."""

_AT_ONCE = 500
"""Tasks that one statement hands back, at most."""


class Reconciler(SimplePart):
    """Find and hand back the tasks of a claim whose result was lost, and those whose completion a
    server has lost. A task that the store does not take back holds up no other one."""

    def __init__(self, context: NodeContext, claimer: TaskClaimer, ordering: Ordering) -> None:
        self._context = context
        self._claimer = claimer
        self._ordering = ordering
        self._is_due = False
        """Whether the store is to be asked which tasks this node holds."""
        self._is_asking = False
        """Whether it is asked now."""
        self._again_at: int | None = None
        """Instant of the late round, in microseconds since the epoch."""
        self._wanted = TimedEvent(context.clock)
        self._refused = RefusedWrites(
            "return of a task that this node does not run",
            log,
            context.clock,
            lambda reports: context.events.on_incidents(reports),
        )
        self._writer = BatchWriter[TaskVersion, Notification | None](
            _AT_ONCE,
            context.clock,
            lambda tasks, notification: self._announce(notification),
            self._on_refused,
        )

    @property
    def is_requested(self) -> bool:
        """Whether this node may hold tasks in the store that it does not know of."""
        is_open = self._is_due or self._is_asking or self._again_at is not None
        return is_open or bool(len(self._writer))

    def request(self) -> None:
        """Request a reconciliation."""
        self._is_due = True
        self._again_at = self._context.clock.now() + round(LATE_SECONDS * MICROS)
        self._wanted.notify()

    async def run(self) -> None:
        """Hand back tasks that this node holds in the store but not in memory, until cancelled."""
        clock = self._context.clock
        while True:
            left = self._writer.next_retry()
            times = [] if left is None else [clock.now() + left]
            times += [] if self._again_at is None else [self._again_at]
            await self._wanted.wait(min(times, default=None))
            if self._again_at is not None and clock.now() >= self._again_at:
                self._is_due, self._again_at = True, None
            if not self._is_due and self._writer.next_retry() is None:
                continue
            await clock.sleep(_WAIT_SECONDS)
            try:
                if self._is_due:
                    await self._reconcile()
                await self._writer.retry(self._hand_back)
            except StoreUnavailable:
                self.request()

    async def _reconcile(self) -> None:
        context = self._context
        # Before the read: a claim that fails meanwhile requests another round.
        self._is_due, self._is_asking, is_done = False, True, False
        try:
            held = await context.claims.held(context.name)
            known = self._claimer.known()
            self._writer.waiting.clear()  # of a round that an outage has ended
            refused = {each.entry for each in self._writer.refused}
            unknown = [task for task in held if task not in known and task not in refused]
            if unknown:
                log.warning(
                    "handing back tasks that this node holds in the store but does not run",
                    extra={"tasks": len(unknown)},
                )
                for task in unknown:
                    self._writer.add(task)
                await self._writer.flush(self._hand_back)
            self._ordering.poke()
            # An earlier hand-back may have succeeded without sending its notification.
            context.channel.redeliver()
            is_done = True
        finally:
            self._is_asking = False
            self._is_due |= not is_done  # also if the node ends: it may still hold these tasks

    async def _hand_back(self, tasks: Sequence[TaskVersion]) -> Notification | None:
        """Hand back tasks. An error that sounds like an outage is a refusal of these tasks if the
        store still responds to a read: a trigger of the user's may raise any error. Raise
        StoreUnavailable, WriteRefused."""
        store, name = self._context.claims, self._context.name
        try:
            return await store.hand_back(name, tasks)
        except WriteRefused:
            raise
        except StoreUnavailable as error:
            await store.held(name)
            raise WriteRefused(str(error)) from error

    def _announce(self, notification: Notification | None) -> None:
        if notification is not None:
            self._context.channel.announce(notification)
            self._ordering.poke()

    def _on_refused(self, refusal: Refusal[TaskVersion]) -> None:
        refused = [each.entry[0] for each in self._writer.refused]
        self._refused.on_refused(refusal.error, refused, refusal.entry[0], "", "")
