"""Periodic tasks: each slot of a cron expression is submitted once in the whole cluster."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fairlead.core import values
from fairlead.core.policies.catch_up import CatchUp, Overlap
from fairlead.declare.handler import Handler
from fairlead.declare.options import Options
from fairlead.declare.queue import Queue
from fairlead.declare.task import Draft
from fairlead.errors import ConfigurationError, InvalidTask

_FIRST_WINDOW = timedelta(minutes=1)
_GROWTH = 8
_FIELDS = {"minutes": 60, "hours": 24, "days of the month": 31, "months": 12, "days of the week": 7}
"""Names of the fields of an expression, each with its number of values."""


class CronTimes:
    """Slots of a cron expression in a timezone. If a clock change skips a slot's local time, the
    slot runs right after the gap; if the change repeats the time, the slot runs once (the rules of
    cronsim and Debian's cron)."""

    def __init__(self, cron: str, timezone: str) -> None:
        """Raise ConfigurationError for an expression or timezone that is unknown."""
        try:
            self._zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"timezone {timezone!r} is unknown; use a name such as 'Europe/Athens'"
            ) from error
        needed = "five fields are needed, as in '*/5 * * * *'"
        # cronsim also takes a sixth field of seconds, for which no slot is kept.
        fields = cron.split()
        if len(fields) != len(_FIELDS):
            raise ConfigurationError(f"cron expression {cron!r}: {needed}")
        try:
            CronSim(cron, datetime(2026, 1, 1, tzinfo=self._zone))
        except CronSimError as error:
            raise ConfigurationError(f"cron expression {cron!r}: {error}; {needed}") from error
        for field, (name, most) in zip(fields, _FIELDS.items(), strict=True):
            for step in map(int, re.findall(r"/(\d+)", field)):
                if step > most:  # cron takes the first value only: `*/90` runs hourly
                    raise ConfigurationError(
                        f"cron expression {cron!r}: the step {step} of the {name}: use at most"
                        f" {most}, and several expressions for a longer interval"
                    )
        self._cron = cron

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the slots after `instant`, in order."""
        for slot in CronSim(self._cron, instant.astimezone(self._zone)):
            # When clocks repeat an hour, cronsim also yields the slots of the first of the two.
            if slot.timestamp() > instant.timestamp():
                yield slot

    def slots(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the slots after `after` and up to `until`, in order."""
        for slot in self.after(after):
            if slot.timestamp() > until.timestamp():
                return
            yield slot

    def latest(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the latest slots after `after` and up to `until`, in order, at most `limit`. The
        cost grows with `limit`, not with the number of slots."""
        window = _FIRST_WINDOW
        while True:
            start = max(after, until - window)
            found = deque(self.slots(start, until), limit)
            if len(found) == limit or start == after:
                return list(found)
            window *= _GROWTH

    def next_slot(self, after: datetime) -> datetime | None:
        """Return the first slot after `after`; None if the expression never matches again."""
        return next(self.after(after), None)

    def local(self, instant: datetime) -> datetime:
        """Return the instant in the timezone of the slots."""
        return instant.astimezone(self._zone)


@lru_cache(maxsize=10_000)
def cron_times(cron: str, timezone: str) -> CronTimes:
    """Return the slots of an expression, parsed once per process. Raise ConfigurationError."""
    return CronTimes(cron, timezone)


class Periodic:
    """A declaration of a periodic task: a handler, its times, and its catch-up policy."""

    def __init__(
        self,
        handler: Handler,
        cron: str,
        timezone: str,
        catch_up: str = CatchUp.LAST,
        name: str | None = None,
        ordering_key: str | None = None,
        overlap: str = Overlap.ALLOW,
    ) -> None:
        """`name`: the name of its record in the store; by default the task's name. `ordering_key`:
        that of its tasks; by default, an ordered queue runs the slots of the task one at a time.
        `overlap`: an `Overlap`. Raise ConfigurationError."""
        values.text("cron expression", cron)
        values.text("timezone", timezone)
        if ordering_key is not None:
            values.text("ordering_key", ordering_key)
        try:
            self.times = cron_times(cron, timezone)
        except ConfigurationError as error:
            raise ConfigurationError(f"task {handler.name!r}: {error}") from error
        what = f"periodic task {handler.name!r}"
        self.catch_up = values.member(f"{what}: catch_up", catch_up, CatchUp)
        self._skips = values.member(f"{what}: overlap", overlap, Overlap) is Overlap.SKIP
        parameters = handler.arguments.names
        if parameters not in ((), ("slot",)):
            raise ConfigurationError(
                f"{what}: declare it without arguments, or with one named slot"
            )
        if parameters:
            try:
                handler.arguments.encode((), {"slot": datetime.now(UTC)})
            except InvalidTask as error:
                raise ConfigurationError(f"{error}; the slot is a datetime") from error
        self.handler = handler
        self.cron = cron
        self.timezone = timezone
        self.name = name or handler.name
        self._takes_slot = bool(parameters)
        self._ordering_key = ordering_key

    def fit(self, queue: Queue) -> None:
        """Submit the tasks to this queue. Raise ConfigurationError if it cannot skip slots."""
        self._queue = queue
        self._options(datetime.now(UTC))

    def draft(self, slot: datetime) -> Draft:
        """Return the draft of a task that runs now, with this instant as its slot."""
        return self._draft(slot, Options(ordering_key=self._options(slot).ordering_key))

    def slot_draft(self, slot: datetime) -> Draft:
        """Return the draft of the task for one slot."""
        return self._draft(slot, self._options(slot))

    def _options(self, slot: datetime) -> Options:
        task = self.handler.name
        return self._queue.slot_options(task, slot, self._ordering_key, self._skips)

    def _draft(self, slot: datetime, options: Options) -> Draft:
        return Draft(self.handler, (), {"slot": slot} if self._takes_slot else {}, options)
