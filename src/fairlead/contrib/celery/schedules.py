"""Schedules of beat: crontab and fixed intervals."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.declare.periodic import cron_times

_SEPARATORS = re.compile(r"\s+")
_NAMES = re.compile(r"[a-z]{3,}", re.IGNORECASE)


class crontab:
    """Times of a cron expression, as Celery's `crontab`. Raises ImproperlyConfigured for fields
    that cron cannot express."""

    def __init__(
        self,
        minute: Any = "*",
        hour: Any = "*",
        day_of_week: Any = "*",
        day_of_month: Any = "*",
        month_of_year: Any = "*",
        **kwargs: Any,
    ) -> None:
        self.minute = _field(minute)
        self.hour = _field(hour)
        self.day_of_week = _field(day_of_week)
        self.day_of_month = _field(day_of_month)
        self.month_of_year = _field(month_of_year)
        if self.day_of_month != "*" and self.day_of_week != "*":
            raise ImproperlyConfigured(
                f"{self!r}: Celery runs it on days that match day_of_month and day_of_week, cron on"
                " days that match one of them; keep one field, and check the other in the task"
            )

    @classmethod
    def from_string(cls, text: str) -> crontab:
        """Return the crontab of five fields: minute, hour, day of month, month, day of week. Raises
        ImproperlyConfigured for another number of fields."""
        fields = text.split()
        if len(fields) != 5:
            raise ImproperlyConfigured(f"crontab {text!r}: five fields are needed")
        minute, hour, day_of_month, month_of_year, day_of_week = fields
        return cls(minute, hour, day_of_week, day_of_month, month_of_year)

    @property
    def expression(self) -> str:
        """The five fields as a cron expression."""
        fields = (self.minute, self.hour, self.day_of_month, self.month_of_year, self.day_of_week)
        return " ".join(fields)

    def __repr__(self) -> str:
        fields = (self.minute, self.hour, self.day_of_week, self.day_of_month, self.month_of_year)
        return f"<crontab: {' '.join(fields)} (m/h/dow/dom/moy)>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, crontab) and self.expression == other.expression

    def __hash__(self) -> int:
        return hash(self.expression)


class schedule:
    """A fixed interval of `run_every` seconds between runs."""

    def __init__(self, run_every: float | timedelta, relative: bool = False, **kwargs: Any) -> None:
        self.run_every = seconds_of(run_every)

    def __repr__(self) -> str:
        return f"<freq: {self.run_every:g} seconds>"


class solar:
    """Refused: there are no schedules by the sun. Raises ImproperlyConfigured."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ImproperlyConfigured(
            "solar(...): there are no schedules by the sun; use crontab, with the times worked out"
            " in the task"
        )


def seconds_of(interval: float | timedelta) -> float:
    """Return the interval in seconds. Raise ImproperlyConfigured below one second."""
    seconds = interval.total_seconds() if isinstance(interval, timedelta) else float(interval)
    if seconds < 1:
        raise ImproperlyConfigured(
            f"a schedule of every {seconds:g} s: the shortest interval is one second"
        )
    return seconds


def cron_of(wanted: Any) -> tuple[str, float | None]:
    """Return the cron expression of a schedule, and the interval in seconds if the expression is
    that of every minute, in which the due times of the interval are found. Raise
    ImproperlyConfigured for another kind of schedule."""
    if isinstance(wanted, crontab):
        cron_times(wanted.expression, "UTC")
        return wanted.expression, None
    if isinstance(wanted, schedule):
        wanted = wanted.run_every
    if isinstance(wanted, bool) or not isinstance(wanted, int | float | timedelta):
        raise ImproperlyConfigured(
            f"schedule {wanted!r}: use crontab(...), a timedelta or a number of seconds"
        )
    seconds = seconds_of(wanted)
    minutes, rest = divmod(seconds, 60)
    if not rest and minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes:.0f} * * * *", None
    hours, rest = divmod(seconds, 3600)
    if not rest and hours and hours < 24 and 24 % hours == 0:
        return f"0 */{hours:.0f} * * *", None
    if seconds == 86_400:
        return "0 0 * * *", None
    if seconds == 604_800:  # counted from the epoch, a Thursday
        return "0 0 * * thu", None
    return "* * * * *", seconds


def _field(value: Any) -> str:
    """Return one field of cron. Celery also takes numbers and collections of numbers."""
    if isinstance(value, str):
        short = _NAMES.sub(lambda name: name[0][:3].lower(), value)  # `thursday` is `thu` in cron
        return _SEPARATORS.sub("", short) or "*"
    if isinstance(value, Iterable):
        return ",".join(str(each) for each in sorted(value))
    return str(value)
