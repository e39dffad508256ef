"""Data of the report page: small frames read from the tables, optionally with hashed keys."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

import msgspec
import pandas as pd

from fairlead.backends.sql.sql_file import load
from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.models import ATTEMPTS, COST, EVENTS, QUARANTINE, RUNS, SERVICE
from fairlead.pipeline.partitions import micros_of, start_of
from fairlead.pipeline.reading.engine import rows_between
from fairlead.pipeline.reading.frames import Frames, with_tables
from fairlead.pipeline.reading.history import Steps, rounded, steps_between
from fairlead.pipeline.runs import Check
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.layout import unit_of
from fairlead.pipeline.windows import ALL, GROWTH, HOUR, MINUTE, SLO_WINDOW

TOP = 12
"""Number of keys, names and errors shown one by one."""
QUEUES_DRAWN = 4
"""Number of queues with charts and keys of their own: those with most worker time."""
LINES = 5
"""Maximum number of keys with a line of their own in a chart."""
MOST_ROWS = 1000
"""Maximum number of queues, objectives, reasons and jobs that are listed."""
_WHOLE = (ATTEMPTS, QUARANTINE, RUNS)
"""Tables that are read without a period."""
BY_DEFAULT = timedelta(days=7)
"""Length of a report without an explicit start."""
_MOST_READ = 100_000
"""Maximum number of rows of a statement, whose rows are by construction fewer."""

KEY_COLUMNS = ("fairness_key", "max_lag_key", "noisy_key")
TEXT_COLUMNS = ("error_text", "error", "failed_checks")
"""Columns of free text, which may contain a key."""
HIDDEN = "(hidden, like the keys)"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rows and keys that a page shows."""

    since: datetime | None = None
    until: datetime | None = None
    """Bounds of the period, as in `period`."""
    top: int = TOP
    """Number of keys, names and errors shown one by one."""
    hash_keys: bool = False
    """Whether `hashed_key` replaces each key."""


class ReportData(NamedTuple):
    """Frames by the name of their statement in report.sql, which says what their columns are.
    Instants in frames are UTC without a time zone."""

    period: Steps
    made_at: int  # microseconds since the epoch
    exported_until: int
    """Last export of any row, in microseconds since the epoch; 0 if no row was exported."""
    built_until: int
    """Instant up to which exported rows are in the tables, in microseconds since the epoch; 0 if
    the tables were never built."""
    rows: dict[str, int]
    """Number of rows of each table of the lake."""
    frames: dict[str, pd.DataFrame]
    hashed: bool = False
    """Whether hashes replace the keys."""


def gather(
    tables: Frames,
    now: int,
    selection: Selection = Selection(),
) -> ReportData:
    """Read and aggregate the tables.

    now: microseconds since the epoch. Raise ConfigurationError if the period is empty or memory is
    short, BrokenLake if the lake is damaged.
    """
    seen = tables.seen
    when = period(tables.parts(SERVICE), now, selection.since, selection.until)
    given = {
        "since": when.since,
        "until": when.until,
        "step_us": when.step_s * MICROS,
        "hours_us": max(when.step_s, HOUR) * MICROS,
        "window_s": when.window_s,
        "top": selection.top,
        "most": MOST_ROWS,
        "lines": LINES,
        "growth": GROWTH,
        "slo_us": SLO_WINDOW * MICROS,
        "now": now,
        "queues": list[str](),
    }

    def parts(table: Table) -> list[str]:
        length = unit_of(table)
        return [
            part
            for part in tables.parts(table)
            if table in _WHOLE or when.since - length < micros_of(part) < when.until
        ]

    def rows(table: Table) -> str:
        all_rows = f"{{{table.name}}}"
        return all_rows if table in (*_WHOLE, COST) else rows_between(table, all_rows)

    frames: dict[str, pd.DataFrame] = {}
    for name, text in load("report.sql", __package__).items():
        frame = tables.frame(with_tables(text, rows), given, parts, at_most=_MOST_READ)
        if name == "queues":  # the first statement
            given["queues"] = list(frame["queue"][:QUEUES_DRAWN])
        frames[name] = frame
    checks = [msgspec.json.decode(each, type=list[Check]) for each in frames["runs"]["checks"]]
    frames["runs"] = frames["runs"].assign(
        checks=list(map(len, checks)),
        failed_checks=["; ".join(str(one) for one in each if not one.holds) for each in checks],
    )
    exported = (seen.tables.get(table) for table in (ATTEMPTS, EVENTS))
    data = ReportData(
        period=when,
        made_at=now,
        exported_until=max((at.exported_at for at in exported if at is not None), default=0),
        built_until=seen.build.until,
        rows={table.name: sum(file.rows for file in at.files) for table, at in seen.tables.items()},
        frames=frames,
    )
    return with_hashed_keys(data) if selection.hash_keys else data


def period(
    hours: Collection[str], now: int, since: datetime | None = None, until: datetime | None = None
) -> Steps:
    """Return the whole hours from `since` (default: seven days before the end) until `until`
    (default: the end of the data), limited to hours with runs.

    hours: names of the hours with runs. now: end of a lake without runs, in microseconds since the
    epoch. Raise ConfigurationError if the period is empty.
    """
    last = to_datetime(now)
    if hours:
        last = start_of(max(hours)) + timedelta(hours=1)
        until = min(until or last, last)
    end = until or last
    begin = since or end - BY_DEFAULT
    if hours and begin < start_of(min(hours)) < end:
        begin = start_of(min(hours))
    if begin >= end:
        raise ConfigurationError(
            f"nothing lies between {begin:%Y-%m-%d %H:%M} and {end:%Y-%m-%d %H:%M} UTC: give an"
            " earlier --since"
        )
    return steps_between(*rounded(to_micros(begin), to_micros(end), HOUR), MINUTE)


def with_hashed_keys(data: ReportData) -> ReportData:
    """Return the data with each key replaced by its hash, and each free text by HIDDEN."""
    hidden = {}
    for name, frame in data.frames.items():
        keys = [*KEY_COLUMNS, "line"] if name == "share_over_time" else KEY_COLUMNS
        changed = {key: frame[key].map(_hidden, na_action="ignore") for key in keys if key in frame}
        for text in (text for text in TEXT_COLUMNS if text in frame):
            changed[text] = frame[text].mask(frame[text].fillna("") != "", HIDDEN)
        hidden[name] = frame.assign(**changed)
    return data._replace(frames=hidden, hashed=True)


def hashed_key(key: str) -> str:
    """Return the first ten hexadecimal digits of the key's SHA-256, which are the same in every
    report. A person who guesses a key can verify the guess."""
    return sha256(key.encode(errors="surrogatepass")).hexdigest()[:10]


def _hidden(key: str) -> str:
    return key if key in ("", ALL) else hashed_key(key)
