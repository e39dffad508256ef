"""Periodic tasks: every node registers its own, and submits each due slot that no other node has
submitted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from zlib import crc32

from fairlead.backends.sql.periodic import (
    Advance,
    PeriodicDeclaration,
    PeriodicRecord,
    PeriodicStore,
)
from fairlead.clock import MICROS, Clock, to_datetime, to_micros
from fairlead.core.policies.catch_up import LATE_SECONDS, MOST_CAUGHT_UP, CatchUp
from fairlead.declare.periodic import CronTimes, Periodic, cron_times
from fairlead.declare.task import Draft
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.poller import Poller
from fairlead.errors import StoreUnavailable
from fairlead.ports.statements import Database

log = logging.getLogger("fairlead.periodic")

LONGEST_PAUSE = 60.0  # seconds

RETRY_SECONDS = 5.0
"""Seconds until the next round after the store was unavailable."""

DECLARE_EVERY = 30 * MICROS
"""Microseconds after which a node records again that it declares its periodic tasks."""


class SlotSubmitter(Protocol):
    """Submits the tasks of due slots."""

    def submit_slots(self, drafts: Sequence[Draft], advance: Advance) -> Awaitable[bool]:
        """Submit the drafts and pass the slots, both or neither; return False if the record has
        changed. A log may have submitted the drafts before that; it
        drops what comes twice."""


class Due(NamedTuple):
    """Slots up to an instant, by the catch-up policy."""

    submitted: list[datetime]
    passed: datetime
    """The last due slot, submitted or skipped."""
    skips: bool
    """Whether earlier slots are skipped."""


def due_slots(times: CronTimes, catch_up: CatchUp, after: datetime, now: datetime) -> Due | None:
    """Return the slots to submit after `after` and up to `now`, in order; None without any slot."""
    first = next(times.slots(after, now), None)
    if first is None:
        return None
    found = times.latest(after, now, MOST_CAUGHT_UP if catch_up == CatchUp.ALL else 1)
    chosen = found
    if catch_up == CatchUp.NONE:
        chosen = list(times.slots(max(after, now - timedelta(seconds=LATE_SECONDS)), now))
    return Due(chosen, found[-1], skips=not chosen or to_micros(first) < to_micros(chosen[0]))


class PeriodicTasks(SimplePart):
    """Periodic tasks of one node. Every node that declares a periodic task checks each slot; a
    compare-and-set on the version of the record lets one node submit the slot, in the same
    transaction."""

    def __init__(
        self,
        node: str,
        periodics: Sequence[Periodic],
        database: Database,
        store: PeriodicStore,
        submitter: SlotSubmitter,
        clock: Clock,
        patience: float = 0.0,
    ) -> None:
        """`patience`: seconds for which a slot is left to the node that declared the record last,
        where several nodes may submit one slot before they see each other."""
        self._node = node
        self._patience = round(patience * MICROS)
        self._periodics = {periodic.name: periodic for periodic in periodics}
        self._database = database
        self._store = store
        self._submitter = submitter
        self._clock = clock
        self._is_registered = False

    async def run(self) -> None:
        """Submit due slots until cancelled."""
        await Poller("periodic", LONGEST_PAUSE, self.round).run(lambda _: True)

    async def round(self) -> float | None:
        """Submit the slots that are due now; return the seconds until the next one."""
        try:
            return await self._round()
        except StoreUnavailable as error:
            log.warning("periodic tasks wait for the store", extra={"error": str(error)})
            return RETRY_SECONDS

    async def _round(self) -> float | None:
        # By the clock that all nodes share, so that a node whose clock is wrong harms no slot.
        began = self._clock.monotonic()
        at = await self._database.read(self._store.clock(self._clock.now()))
        records = await self._records(at)
        pauses = []
        for record in sorted(records, key=self._order):
            until = at if record.declared_by == self._node else at - self._patience
            now = to_datetime(until)
            try:
                periodic = self._periodics[record.name]
                times = cron_times(record.cron, record.timezone)
                if not await self._submit_due(periodic, times, record, now):
                    pauses.append(0.0)  # another node or a person changed the record: read it again
                    continue
            except StoreUnavailable:
                raise
            except Exception:  # a wrong record or interceptor harms only its own periodic task
                log.exception(
                    "slot not submitted; the node tries again", extra={"periodic": record.name}
                )
                continue
            following = times.next_slot(now)
            if following is not None:
                pauses.append((to_micros(following) - until) / MICROS)
        return min(pauses) - (self._clock.monotonic() - began) if pauses else None

    def _order(self, record: PeriodicRecord) -> int:
        """Return the position of a record in the order of this node. Each node has its own order,
        so that nodes share the work when many slots are due."""
        return crc32(f"{self._node}/{record.name}".encode())

    async def _records(self, at: int) -> list[PeriodicRecord]:
        """Register or declare the node's own periodic tasks, and return their records. `at`: the
        instant by the shared clock."""
        known = [] if not self._is_registered else await self._read()
        missing = self._periodics.keys() - {record.name for record in known}
        if missing:
            await self._database.run_async(
                self._store.register(
                    [_declaration(self._periodics[name]) for name in sorted(missing)],
                    self._node,
                    at,
                )
            )
            self._is_registered = True
            return await self._read()
        if any(record.declared_at <= at - DECLARE_EVERY for record in known):
            steps = self._store.declare(sorted(self._periodics), self._node, at, DECLARE_EVERY)
            await self._database.run_async(steps, durable=False)
        return known

    async def _read(self) -> list[PeriodicRecord]:
        records = await self._database.read(self._store.records())
        return [record for record in records if record.name in self._periodics]

    async def _submit_due(
        self, periodic: Periodic, times: CronTimes, record: PeriodicRecord, now: datetime
    ) -> bool:
        """Submit the due slots of one record; return False if the record has changed."""
        if record.paused:
            return True
        due = due_slots(times, CatchUp(record.catch_up), to_datetime(record.passed_at), now)
        if due is None:
            return True
        passed_at = to_micros(due.passed)
        advance = Advance(
            record.name, record.version, passed_at, passed_at if due.submitted else None
        )
        drafts = [periodic.slot_draft(slot) for slot in due.submitted]
        is_ours = await asyncio.shield(self._submitter.submit_slots(drafts, advance))
        if is_ours and due.skips:
            log.warning(
                "missed slots of a periodic task are skipped",
                extra={
                    "periodic": record.name,
                    "catch_up": record.catch_up,
                    "after": to_datetime(record.passed_at).isoformat(),
                    "submitted": len(due.submitted),
                },
            )
        return is_ours


def _declaration(periodic: Periodic) -> PeriodicDeclaration:
    return PeriodicDeclaration(
        periodic.name,
        periodic.handler.name,
        periodic.handler.queue,
        periodic.cron,
        periodic.timezone,
        str(periodic.catch_up),
    )
