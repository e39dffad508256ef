"""Business days: calendar days of a time zone. A day on which the clocks change has 23 or 25 hours,
or is shifted by half an hour. Partitions stay hours and dates of UTC. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

_DAY, _HOUR = timedelta(days=1), timedelta(hours=1)


def bounds_of(day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first instant of a business day and of the next one, in UTC."""
    begin, end = (
        datetime.combine(each, time(), zone).astimezone(UTC) for each in (day, day + _DAY)
    )
    return begin, end


def begin_date(day: date, zone: ZoneInfo) -> str:
    """Return the date of UTC on which a business day begins: its partition."""
    return bounds_of(day, zone)[0].date().isoformat()


def days_of(hours: Iterable[str], zone: ZoneInfo) -> set[date]:
    """Return the business days that contain a part of these hours (2026-11-27/13, UTC)."""
    days = set()
    for hour in hours:
        start = datetime.strptime(hour, "%Y-%m-%d/%H").replace(tzinfo=UTC)
        for instant in (start, start + _HOUR - timedelta.resolution):
            days.add(instant.astimezone(zone).date())
    return days


def with_neighbours(days: Collection[date], zone: ZoneInfo) -> list[date]:
    """Return these business days, and those that begin on the same dates of UTC, ascending: two
    days may begin on one date, and share a partition."""
    dates = {begin_date(day, zone) for day in days}
    near = {day + n * _DAY for day in days for n in (-1, 0, 1)}
    return sorted(day for day in near if begin_date(day, zone) in dates)


def hours_within(days: Iterable[date], zone: ZoneInfo) -> list[str]:
    """Return the hours of UTC that have a part of these business days, ascending."""
    hours = set()
    for day in days:
        begin, end = bounds_of(day, zone)
        hour = begin.replace(minute=0)
        while hour < end:
            hours.add(f"{hour:%Y-%m-%d/%H}")
            hour += _HOUR
    return sorted(hours)
