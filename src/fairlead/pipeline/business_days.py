"""Business days: calendar days of a time zone. A day on which the clocks change has 23 or 25 hours,
or is shifted by half an hour. Partitions stay hours and dates of UTC. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_DAY, _HOUR = timedelta(days=1), timedelta(hours=1)

Span = tuple[datetime, datetime]
"""First instant and end, which does not belong to it."""


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return ascending spans, those that follow each other as one."""
    found: list[Span] = []
    for begin, end in spans:
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end))
    return found


def bounds_of(day: date, zone: tzinfo) -> Span:
    """Return the first instant of a business day and of the next one, in UTC."""
    begin, end = (
        datetime.combine(each, time(), zone).astimezone(UTC) for each in (day, day + _DAY)
    )
    return begin, end


def begin_date(day: date, zone: ZoneInfo) -> str:
    """Return the date of UTC on which a business day begins: its partition."""
    return bounds_of(day, zone)[0].date().isoformat()


def first_begin(date_utc: str, zone: ZoneInfo) -> datetime:
    """Return the start of the first business day that begins on or after this date of UTC."""
    least = datetime.fromisoformat(date_utc).replace(tzinfo=UTC)
    begin, end = bounds_of(least.astimezone(zone).date(), zone)
    return begin if begin >= least else end


def days_of(hours: Iterable[str], zone: ZoneInfo) -> set[date]:
    """Return the business days that contain a part of these hours (2026-11-27/13, UTC)."""
    starts = [datetime.strptime(hour, "%Y-%m-%d/%H").replace(tzinfo=UTC) for hour in hours]
    ends = [start + _HOUR - timedelta.resolution for start in starts]
    return {instant.astimezone(zone).date() for instant in (*starts, *ends)}


def hours_from(instant: datetime, zone: tzinfo) -> datetime:
    """Return the first start of an hour of a business day that is not before the instant. The hours
    of a day follow each other from its start, and the last one may be cut off at its end."""
    begin, end = bounds_of(instant.astimezone(zone).date(), zone)
    return min(begin - (begin - instant) // _HOUR * _HOUR, end)


class Days(NamedTuple):
    """Business days to build again."""

    hours: list[str]
    """Hours of UTC that have a part of them, ascending."""
    spans: list[Span]
    """First instants and ends, ascending; days that follow each other are one span."""
    dates: list[str]
    """Dates of UTC that have a part of the spans, ascending."""


def days_again(hours: Iterable[str], zone: ZoneInfo, first: str = "") -> Days:
    """Return the business days that contain these hours.

    first: date of UTC before which nothing is built again, so that spans and dates begin there;
    empty for none.
    """
    days = sorted(days_of(hours, zone))
    least = datetime.fromisoformat(first or "0001-01-01").replace(tzinfo=UTC)
    bounds = [bounds_of(day, zone) for day in days]
    spans = joined((max(begin, least), end) for begin, end in bounds if end > least)
    read = hours_within(days, zone)
    return Days(read, spans, sorted({hour[:10] for hour in read if hour >= first}))


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
