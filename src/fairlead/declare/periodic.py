"""Periodic tasks: each slot of a cron expression is submitted once in the whole cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fairlead.declare.handler import Handler
from fairlead.errors import ConfigurationError


class Periodic:
    """A handler and its times. If a clock change skips a slot's local time, the slot runs right
    after the gap; if the change repeats the time, the slot runs once (the rules of cronsim and
    Debian's cron)."""

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
        """Yield the slots after `after` and up to `until`, in order."""
        for slot in CronSim(self.cron, after.astimezone(self._zone)):
            if slot > until:
                return
            yield slot

    def next_slot(self, after: datetime) -> datetime | None:
        """Return the first slot after `after`; None if the expression never matches again."""
        return next(iter(CronSim(self.cron, after.astimezone(self._zone))), None)
