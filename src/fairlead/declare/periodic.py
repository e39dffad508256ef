"""Periodic tasks: each slot of a cron expression is submitted once in the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fairlead.clock import MICROS, to_datetime
from fairlead.declare.handler import Handler
from fairlead.declare.options import Options
from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from fairlead.app import App
    from fairlead.engine.pollers import Poller

CATCH_UP = timedelta(minutes=5)
"""How far back slots are still submitted that nobody submitted in time, say because no node was
up."""

LONGEST_PAUSE = 60.0  # seconds


class Periodic:
    """A handler and its times. Where a clock change skips a slot's local time it runs right after
    the gap; where one repeats it, it runs once (cronsim's rules, those of Debian's cron)."""

    def __init__(self, handler: Handler, cron: str, timezone: str) -> None:
        try:
            self._zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ConfigurationError(
                f"task {handler.name!r}: timezone {timezone!r} is unknown"
            ) from error
        try:
            CronSim(cron, datetime(2026, 1, 1, tzinfo=self._zone))
        except CronSimError as error:
            raise ConfigurationError(
                f"task {handler.name!r}: cron expression {cron!r}: {error}; five fields are needed,"
                " as in '*/5 * * * *'"
            ) from error
        self.handler = handler
        self.cron = cron
        parameters = handler.arguments.names
        if parameters not in ((), ("slot",)):
            raise ConfigurationError(
                f"periodic task {handler.name!r}: takes no argument, or one named slot"
            )
        self.takes_slot = bool(parameters)

    def slots(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The slots later than `after` and not later than `until`, in order."""
        for slot in CronSim(self.cron, after.astimezone(self._zone)):
            if slot > until:
                return
            yield slot

    def next_slot(self, after: datetime) -> datetime | None:
        """The first slot later than `after`; None when the expression never matches again."""
        return next(iter(CronSim(self.cron, after.astimezone(self._zone))), None)


def periodic_poller(app: App) -> Poller:
    """The poller that submits what is due; the unique key of a slot keeps it to one task, whoever
    submits it."""
    from fairlead.declare.task import Draft
    from fairlead.engine.pollers import Poller

    last = to_datetime(app.clock.now()) - CATCH_UP

    async def submit_due() -> float | None:
        nonlocal last
        now = to_datetime(app.clock.now())
        # Elected anew: an earlier node may have stopped before the slots of the last minutes.
        since = max(last, now - CATCH_UP)
        drafts = []
        for periodic in app.periodics:
            for slot in periodic.slots(since, now):
                key = f"periodic/{periodic.handler.name}/{slot.isoformat()}"
                kwargs = {"slot": slot} if periodic.takes_slot else {}
                drafts.append(Draft(periodic.handler, (), kwargs, Options(unique_key=key)))
        if drafts:
            await asyncio.shield(app.submit_many_async(drafts))
        last = now
        following = [
            following_slot
            for each in app.periodics
            if (following_slot := each.next_slot(now)) is not None
        ]
        if not following:
            return None
        return (min(following) - to_datetime(app.clock.now())) / timedelta(microseconds=1) / MICROS

    return Poller("periodic", LONGEST_PAUSE, submit_due)
