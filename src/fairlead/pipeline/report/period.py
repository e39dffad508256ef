"""Period of a report, and the steps in which it is drawn."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

import pandas as pd

from fairlead.backends.sql.sql_file import load
from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.windows import WINDOWS, window_of_utc
from fairlead.pipeline.parts import start_of
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.schema import Table
from fairlead.pipeline.steps import step_for

_STATEMENTS = load("report.sql", __package__)

HOUR_S = 3600
BY_DEFAULT = timedelta(days=7)
"""Length of a report without an explicit start."""


class Parts(Protocol):
    """Tables whose partitions are known."""

    def parts(self, table: Table) -> list[str]:
        """Return the partitions with rows."""


class Period(NamedTuple):
    """Instants in [since, until): whole hours UTC, and whole steps if these are longer."""

    since: datetime
    until: datetime
    step_s: int
    zone: str = "UTC"
    """Time zone of the business days of the tables."""

    @property
    def window_s(self) -> int:
        """Seconds of the largest windows of gold that make up a step, which is one of UTC."""
        most = window_of_utc(ZoneInfo(self.zone), self.since.year)
        return max(window for window in WINDOWS if window <= most and self.step_s % window == 0)

    def step_of(self, least_s: int) -> int:
        """Return the seconds of a step for data in windows of `least_s` seconds; one is a multiple
        of the other."""
        return max(self.step_s, least_s)

    def parts(self, tables: Parts, table: Table) -> list[str]:
        """Return the partitions of the table that overlap the period."""
        length = timedelta(hours=1) if table.by == "hour" else timedelta(days=1)
        return [
            part
            for part in tables.parts(table)
            if start_of(part) < self.until and start_of(part) + length > self.since
        ]

    def frame(
        self, tables: Frames, statement: str, at_most: int, least_s: int = 0, **given: Any
    ) -> pd.DataFrame:
        """Return the rows of a statement of report.sql over the partitions of the period, which by
        construction are at most `at_most` ($most in the statement). A step lasts at least `least_s`
        seconds. Raise CheckFailed for more rows, which would be left out of the report, BrokenLake
        for a damaged file."""
        values = {
            **given,
            "most": at_most,
            "since": to_micros(self.since),
            "until": to_micros(self.until),
            "step_us": self.step_of(least_s) * MICROS,
            "window_s": self.window_s,
        }
        return tables.frame(
            _STATEMENTS[statement], values, lambda table: self.parts(tables, table), at_most=at_most
        )


def period(
    tables: Parts,
    now: int,
    since: datetime | None = None,
    until: datetime | None = None,
    zone: str = "UTC",
) -> Period:
    """Return the period from `since` (default: seven days before the end) until `until` (default:
    the end of the data), limited to hours with runs.

    now: end of a lake without runs, in microseconds since the epoch. zone: time zone of business
    days of the tables. Raise ConfigurationError if the period is empty.
    """
    hours = [start_of(part) for part in tables.parts(SERVICE)]
    first, last = (
        (min(hours), max(hours) + timedelta(hours=1)) if hours else (None, to_datetime(now))
    )
    end = last if until is None or (first is not None and until > last) else until
    begin = end - BY_DEFAULT if since is None else since
    if first is not None and begin < first < end:
        begin = first
    if begin >= end:
        raise ConfigurationError(
            f"nothing lies between {begin:%Y-%m-%d %H:%M} and {end:%Y-%m-%d %H:%M} UTC: give an"
            " earlier --since"
        )
    begin, end = _rounded(begin, HOUR_S, up=False), _rounded(end, HOUR_S, up=True)
    step_s = step_for((end - begin).total_seconds())
    unit_s = max(step_s, HOUR_S)
    return Period(_rounded(begin, unit_s, up=False), _rounded(end, unit_s, up=True), step_s, zone)


def _rounded(instant: datetime, unit_s: int, up: bool) -> datetime:
    unit = unit_s * MICROS
    whole = -(-to_micros(instant) // unit) if up else to_micros(instant) // unit
    return to_datetime(whole * unit)
