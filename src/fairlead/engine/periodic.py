"""The poller of periodic tasks: submit each slot once in the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from fairlead.clock import MICROS, Clock, to_datetime
from fairlead.declare.options import Options
from fairlead.declare.periodic import Periodic
from fairlead.declare.task import Draft
from fairlead.engine.poller import Poller

CATCH_UP = timedelta(minutes=5)
"""Age up to which a missed slot is still submitted, for example after a time without workers."""

LONGEST_PAUSE = 60.0  # seconds


def periodic_poller(
    periodics: Sequence[Periodic],
    submit: Callable[[Sequence[Draft]], Awaitable[object]],
    clock: Clock,
) -> Poller:
    """Return the poller that submits due slots; the unique key of a slot keeps it to one task even
    if two nodes submit it."""
    last = to_datetime(clock.now()) - CATCH_UP

    async def submit_due() -> float | None:
        nonlocal last
        now = to_datetime(clock.now())
        # After an election: the previous node may have missed the slots of the last minutes.
        since = max(last, now - CATCH_UP)
        drafts = [
            _draft(periodic, slot) for periodic in periodics for slot in periodic.slots(since, now)
        ]
        if drafts:
            await asyncio.shield(submit(drafts))
        last = now
        following = [
            slot for periodic in periodics if (slot := periodic.next_slot(now)) is not None
        ]
        if not following:
            return None
        return (min(following) - to_datetime(clock.now())) / timedelta(microseconds=1) / MICROS

    return Poller("periodic", LONGEST_PAUSE, submit_due)


def _draft(periodic: Periodic, slot: datetime) -> Draft:
    key = f"periodic/{periodic.handler.name}/{slot.isoformat()}"
    kwargs = {"slot": slot} if periodic.takes_slot else {}
    return Draft(periodic.handler, (), kwargs, Options(unique_key=key))
