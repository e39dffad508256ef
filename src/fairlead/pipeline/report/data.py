"""Data of the report page: small frames read from the tables, optionally with hashed keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import msgspec
import pandas as pd

from fairlead.clock import MICROS
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.latency import GROWTH
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.slo import STEP_S
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.period import HOUR_S, STATEMENTS, Period, period
from fairlead.pipeline.runs import Check

TOP = 12
"""Number of keys, names and errors shown one by one."""
QUEUES_DRAWN = 4
"""Number of queues with pictures and keys of their own: those with most worker time."""
LINES = 7
"""Maximum number of keys with a line of their own in a picture."""
MOST_ROWS = 1000
"""Maximum number of queues, objectives, reasons and jobs that are listed."""
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
    unexported: int | None = None
    """Finished attempts in the store that are not in the lake; None if the store was not read."""


class ReportData(NamedTuple):
    """Frames by the name of their statement in report.sql, which says what their columns are.
    Instants in frames are UTC without a time zone."""

    period: Period
    made_at: int  # microseconds since the epoch
    exported_until: int
    """Last export of any row, in microseconds since the epoch; 0 if no row was exported."""
    built_until: int
    """Instant up to which exported rows are in the tables, in microseconds since the epoch; 0 if
    the tables were never built."""
    unexported: int | None
    """Attempts in the store that are not in the lake; None if the store was not read."""
    rows: dict[str, int]
    """Number of rows of each table of the lake."""
    frames: dict[str, pd.DataFrame]
    hashed: bool = False
    """Whether hashes replace the keys."""


def gather(
    tables: Frames,
    now: int,
    selection: Selection = Selection(),
    on_rows: Callable[[str, int], None] = lambda part, rows: None,
) -> ReportData:
    """Read and aggregate the tables.

    now: microseconds since the epoch. on_rows: callback with the name and the number of rows of
    each frame. Raise ConfigurationError if the period is empty or memory is short, BrokenLake if
    the lake is damaged.
    """
    seen = tables.seen
    when = period(tables.parts(SERVICE), now, selection.since, selection.until)
    given = {
        "top": selection.top,
        "most": MOST_ROWS,
        "lines": LINES,
        "growth": GROWTH,
        "slo_us": STEP_S * MICROS,
        "hours_us": when.step_of(HOUR_S) * MICROS,
        "now": now,
        "queues": list[str](),
    }
    frames: dict[str, pd.DataFrame] = {}
    for name in STATEMENTS:
        if name in ("quarantined", "newest", "runs"):
            frame = tables.frame(STATEMENTS[name], given, at_most=_MOST_READ)
        else:
            frame = when.frame(tables, name, _MOST_READ, **given)
        if name == "queues":  # the first statement
            given["queues"] = list(frame["queue"][:QUEUES_DRAWN])
        frames[name] = frame
        on_rows(name, len(frame))
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
        unexported=selection.unexported,
        rows={table.name: sum(file.rows for file in at.files) for table, at in seen.tables.items()},
        frames=frames,
    )
    return with_hashed_keys(data) if selection.hash_keys else data


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
    return key if key == ALL else hashed_key(key)
