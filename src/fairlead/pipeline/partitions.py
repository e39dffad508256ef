"""Names of partitions, hours and dates, and the intervals that they form. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta

from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.pipeline.schema import Table

HOUR_US = 3600 * MICROS
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)

Span = tuple[datetime, datetime]
"""First instant and end, which does not belong to it."""

PartsOf = Callable[[Table], Collection[str] | None]
"""Returns the partitions of a table to read; None for all."""


def all_parts(table: Table) -> None:
    """Return None: read all partitions."""


def part_of(table: Table, instant: datetime) -> str:
    """Return the partition of a table with this instant."""
    return instant.strftime("%Y-%m-%d/%H" if table.by == "hour" else "%Y-%m-%d")


def start_of(part: str) -> datetime:
    """Return the start of a partition."""
    return datetime.strptime(part, "%Y-%m-%d/%H" if "/" in part else "%Y-%m-%d").replace(tzinfo=UTC)


def micros_of(part: str) -> int:
    """Return the start of a partition in microseconds since the epoch."""
    return to_micros(start_of(part))


def dates_of(parts: Iterable[str]) -> list[str]:
    """Return the dates of these hours, ascending."""
    return sorted({part.partition("/")[0] for part in parts})


def hours_of(dates: Iterable[str]) -> list[str]:
    """Return all hours of these dates, ascending."""
    return [f"{date}/{hour:02}" for date in sorted(dates) for hour in range(24)]


def days_from(dates: Collection[str], days: int) -> list[str]:
    """Return these dates and the `days` after each, ascending."""
    return sorted(
        {
            (start_of(date) + n * _DAY).strftime("%Y-%m-%d")
            for date in dates
            for n in range(days + 1)
        }
    )


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return ascending spans, those that follow each other as one."""
    found: list[Span] = []
    for begin, end in spans:
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end))
    return found


def runs_of(parts: Iterable[str]) -> list[Span]:
    """Return the intervals [since, until) that consecutive partitions, hours or dates, form."""
    starts = [(start_of(part), _HOUR if "/" in part else _DAY) for part in sorted(parts)]
    return joined((start, start + lasts) for start, lasts in starts)


def hours_between(first: int, last: int) -> list[str]:
    """Return the names of the hours from the first instant to the last, both in microseconds since
    the epoch."""
    hours = range(first // HOUR_US, last // HOUR_US + 1)
    return [f"{to_datetime(hour * HOUR_US):%Y-%m-%d/%H}" for hour in hours]
