"""Period of a report, and the steps in which it is drawn."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pandas as pd

from fairlead.backends.sql.sql_file import load
from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.parts import start_of
from fairlead.pipeline.reading.engine import rows_between
from fairlead.pipeline.reading.frames import Frames, with_tables
from fairlead.pipeline.reading.history import Steps, rounded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.steps import step_for

STATEMENTS = load("report.sql", __package__)

HOUR_S = 3600
BY_DEFAULT = timedelta(days=7)
"""Length of a report without an explicit start."""


class Period(NamedTuple):
    """Instants in [since, until): whole hours UTC, and whole steps if these are longer."""

    since: datetime
    until: datetime
    step_s: int

    @property
    def window_s(self) -> int:
        """Seconds of the largest windows of gold that make up a step."""
        return Steps(to_micros(self.since), to_micros(self.until), self.step_s).window_s

    @property
    def length_us(self) -> int:
        """Length in microseconds."""
        return to_micros(self.until) - to_micros(self.since)

    @property
    def naive(self) -> tuple[datetime, datetime]:
        """Both ends as frames have instants: UTC without a zone."""
        return self.since.replace(tzinfo=None), self.until.replace(tzinfo=None)

    def step_of(self, least_s: int) -> int:
        """Return the seconds of a step for data in windows of `least_s` seconds; one is a multiple
        of the other."""
        return max(self.step_s, least_s)

    def frame(self, tables: Frames, statement: str, at_most: int, **given: Any) -> pd.DataFrame:
        """Return the rows of a statement of report.sql over the tables in the period, which by
        construction are at most `at_most`. Raise CheckFailed for more rows, BrokenLake for a
        damaged file."""

        def rows(table: Table) -> str:
            all_rows = f"{{{table.name}}}"
            # The days of costs are whole.
            return all_rows if table == COST else rows_between(table, all_rows)

        def parts(table: Table) -> list[str]:
            length = timedelta(hours=1) if table.by == "hour" else timedelta(days=1)
            return [
                part
                for part in tables.parts(table)
                if start_of(part) < self.until and start_of(part) + length > self.since
            ]

        values = {
            **given,
            "since": to_micros(self.since),
            "until": to_micros(self.until),
            "step_us": self.step_s * MICROS,
            "window_s": self.window_s,
        }
        text = with_tables(STATEMENTS[statement], rows)
        return tables.frame(text, values, parts, at_most=at_most)


def period(
    hours: Collection[str],
    now: int,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Period:
    """Return the period from `since` (default: seven days before the end) until `until` (default:
    the end of the data), limited to hours with runs.

    hours: names of the hours with runs. now: end of a lake without runs, in microseconds since the
    epoch. Raise ConfigurationError if the period is empty.
    """
    first, last = None, to_datetime(now)
    if hours:
        first, last = start_of(min(hours)), start_of(max(hours)) + timedelta(hours=1)
    end = last if until is None or (first is not None and until > last) else until
    begin = end - BY_DEFAULT if since is None else since
    if first is not None and begin < first < end:
        begin = first
    if begin >= end:
        raise ConfigurationError(
            f"nothing lies between {begin:%Y-%m-%d %H:%M} and {end:%Y-%m-%d %H:%M} UTC: give an"
            " earlier --since"
        )
    since_us, until_us = rounded(to_micros(begin), to_micros(end), HOUR_S)
    step_s = step_for((until_us - since_us) / MICROS)
    since_us, until_us = rounded(since_us, until_us, max(step_s, HOUR_S))
    return Period(to_datetime(since_us), to_datetime(until_us), step_s)
