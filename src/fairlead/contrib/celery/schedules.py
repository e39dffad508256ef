"""Schedules of beat, crontab and fixed intervals, as periodic tasks of Fairlead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.contrib.celery.missing import lookup
from fairlead.contrib.celery.signatures import Signature
from fairlead.declare.periodic import cron_times

if TYPE_CHECKING:
    from fairlead.app import App
    from fairlead.contrib.celery.app import Celery

PREFIX = "beat: "
"""Beginning of the name of the periodic task of an entry."""
_KNOWN = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
_KNOWN_FOR = timedelta(days=7)
"""Time for which a due time is known, so that a second run of its slot submits nothing."""
_NAMES = re.compile(r"[a-z]{3,}", re.IGNORECASE)
__getattr__ = lookup(__name__)


class crontab:
    """Times of a cron expression, as Celery's `crontab`. Raises ImproperlyConfigured for fields
    that cron cannot express."""

    def __init__(
        self, minute: Any = "*", hour: Any = "*", day_of_week: Any = "*", day_of_month: Any = "*",
        month_of_year: Any = "*",
    ) -> None:  # fmt: skip
        fields = [_field(each) for each in (minute, hour, day_of_month, month_of_year, day_of_week)]
        self.expression = " ".join(fields)
        if fields[2] != "*" and fields[4] != "*":
            raise ImproperlyConfigured(
                f"crontab {self.expression!r}: Celery runs it on days that match day_of_month and"
                " day_of_week, cron on days that match one of them; keep one field, and check the"
                " other in the task"
            )


def _field(value: Any) -> str:
    """Return one field of cron. Celery also takes numbers and collections of numbers."""
    if isinstance(value, str):
        short = _NAMES.sub(lambda name: name[0][:3].lower(), value)  # `thursday` is `thu` in cron
        return "".join(short.split()) or "*"
    each = sorted(value) if isinstance(value, Iterable) else [value]
    return ",".join(map(str, each))


def cron_of(wanted: Any) -> tuple[str, float | None]:
    """Return the cron expression of a schedule, and the interval in seconds if the expression is
    that of every minute, in which the due times of the interval are found. Raise
    ImproperlyConfigured for another kind of schedule."""
    if isinstance(wanted, crontab):
        cron_times(wanted.expression, "UTC")
        return wanted.expression, None
    seconds = wanted.total_seconds() if isinstance(wanted, timedelta) else wanted
    if not isinstance(seconds, int | float) or seconds < 1:
        raise ImproperlyConfigured(
            f"schedule {wanted!r}: use crontab(...), a timedelta or a number of seconds, from 1 on"
        )
    minutes, hours = seconds / 60, seconds / 3600
    if minutes in range(1, 60) and 60 % minutes == 0:
        return f"*/{minutes:.0f} * * * *", None
    if hours in range(1, 24) and 24 % hours == 0:
        return f"0 */{hours:.0f} * * *", None
    return ("0 0 * * *", None) if hours == 24 else ("* * * * *", seconds)


def due_times(slot: datetime, seconds: float | None) -> list[datetime]:
    """Return the multiples of an interval since the epoch within the minute that begins with the
    slot; without an interval, the slot."""
    if seconds is None:
        return [slot]
    first, end = math.ceil(slot.timestamp() / seconds), (slot.timestamp() + 60) / seconds
    return [datetime.fromtimestamp(n * seconds, UTC) for n in range(first, math.ceil(end))]


def add_entry(app: Celery, fairlead: App, name: str, entry: Mapping[str, Any]) -> None:
    """Declare the periodic task of an entry of a beat schedule. Raise ImproperlyConfigured for an
    entry that cannot be carried out."""
    if {*entry} - _KNOWN or "task" not in entry or "schedule" not in entry:
        raise ImproperlyConfigured(
            f"beat_schedule[{name!r}]: use {', '.join(sorted(_KNOWN))}, of which task and schedule"
            " are needed"
        )
    cron, seconds = cron_of(entry["schedule"])

    def submit(slot: datetime) -> None:
        for at in due_times(slot, seconds):
            key = f"beat/{name}/{at.astimezone(UTC).isoformat()}"
            own = {"unique_key": key, "unique_for": _KNOWN_FOR, "eta": at}
            options = {**own, **(entry.get("options") or {})}
            given = entry.get("args"), entry.get("kwargs"), options
            Signature(entry["task"], *given, app=app).apply_async()

    catch_up = "last" if seconds is None else "none"
    declare = fairlead.periodic(cron, timezone=str(app.conf.timezone or "UTC"), catch_up=catch_up)
    declare(fairlead.task(name=PREFIX + name, queue=app.conf.task_default_queue)(submit))
