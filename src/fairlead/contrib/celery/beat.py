"""Schedules of beat as periodic tasks of Fairlead: each due time submits its task once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery.canvas import Signature
from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.contrib.celery.schedules import cron_of

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery

PREFIX = "beat: "
"""Beginning of the name of the periodic task of an entry."""
_KNOWN = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})


def add_entry(app: Celery, name: str, entry: Mapping[str, Any]) -> None:
    """Declare the periodic task of an entry of a beat schedule. Raise ImproperlyConfigured for an
    entry that cannot be carried out."""
    unknown = set(entry) - _KNOWN
    if unknown or "task" not in entry or "schedule" not in entry:
        raise ImproperlyConfigured(
            f"beat_schedule[{name!r}]: use {', '.join(sorted(_KNOWN))}, of which task and schedule"
            " are needed"
        )
    cron, seconds = cron_of(entry["schedule"])
    options = dict(entry.get("options") or {})
    if isinstance(options.get("expires"), timedelta):
        options["expires"] = options["expires"].total_seconds()
    wanted = Signature(entry["task"], entry.get("args"), entry.get("kwargs"), options, app=app)
    zone = app.conf.timezone
    if not zone and not app.conf.enable_utc:
        raise ImproperlyConfigured(
            f"beat_schedule[{name!r}]: the time zone of the machine is not used; name it with"
            " timezone=, or leave enable_utc=False out"
        )
    fairlead = app.declaring
    declare = fairlead.periodic(
        cron, timezone=str(zone) if zone else "UTC", catch_up="last" if seconds is None else "none"
    )
    declare(
        fairlead.task(name=PREFIX + name, queue=app.conf.task_default_queue)(
            _submitter(app, name, wanted, seconds)
        )
    )


def _submitter(
    app: Celery, name: str, wanted: Signature, seconds: float | None
) -> Callable[[datetime], None]:
    def submit(slot: datetime) -> None:
        due = [slot] if seconds is None else due_times(slot, seconds)
        for at in due:
            key = f"beat/{name}/{at.astimezone(UTC).isoformat()}"
            later = {} if seconds is None else {"eta": at}
            options = {"unique_key": key, **wanted.options, **later}
            wanted.clone().set(**options).apply_async()

    return submit


def due_times(slot: datetime, seconds: float) -> list[datetime]:
    """Return the multiples of an interval since the epoch within the minute that begins with the
    slot."""
    start = slot.timestamp()
    first = math.ceil(start / seconds)
    found = []
    while first * seconds < start + 60:
        found.append(datetime.fromtimestamp(first * seconds, UTC))
        first += 1
    return found
