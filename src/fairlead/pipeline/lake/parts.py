"""Names of partitions, hours and dates, and the partitions in an interval. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from fairlead.clock import MICROS
from fairlead.pipeline.lake.manifest import TablePart

HOUR_US = 3600 * MICROS
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


def hour_name(hour: datetime) -> str:
    """Return the partition of an hour."""
    return hour.strftime("%Y-%m-%d/%H")


def start_of(part: str) -> datetime:
    """Return the start of a partition."""
    return datetime.strptime(part, "%Y-%m-%d/%H" if "/" in part else "%Y-%m-%d").replace(tzinfo=UTC)


def micros_of(part: str) -> int:
    """Return the start of a partition in microseconds since the epoch."""
    return round(start_of(part).timestamp()) * MICROS


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


def runs_of(hours: Iterable[str]) -> Iterator[tuple[datetime, datetime]]:
    """Yield the intervals [since, until) that consecutive hours form."""
    since = until = None
    for hour in map(start_of, sorted(hours)):
        if hour == until:
            until = hour + _HOUR
            continue
        if since is not None and until is not None:
            yield since, until
        since, until = hour, hour + _HOUR
    if since is not None and until is not None:
        yield since, until


class PartState(NamedTuple):
    """State of the rows of a partition at some time. Compaction does not change it, because
    compaction changes only files."""

    rows: int
    changed_at: int


def states_of(parts: Mapping[str, TablePart]) -> dict[str, PartState]:
    """Return the present state of the partitions."""
    return {name: PartState(part.rows, part.changed_at) for name, part in parts.items()}


def changed(now: Mapping[str, TablePart], before: Mapping[str, PartState]) -> set[str]:
    """Return the partitions whose rows have changed since `before`, and those removed since."""
    return {name for name, part in states_of(now).items() if part != before.get(name)} | (
        before.keys() - now.keys()
    )


def holding(
    parts: Mapping[str, TablePart], first_instants: Collection[str], hours: Collection[str]
) -> set[str]:
    """Return the hourly partitions that may hold rows that overlap one of the hours. The rows of a
    partition lie between the earliest value of its `first_instants` (names of columns) and its
    end."""
    starts = sorted(map(micros_of, hours))
    found = set()
    for name, part in parts.items():
        end = micros_of(name) + HOUR_US
        begin = min(
            (part.span[column][0] for column in first_instants if column in part.span),
            default=end - HOUR_US,
        )
        if any(start < end and start + HOUR_US > begin for start in starts):
            found.add(name)
    return found
