"""Data of the report page: small frames read from the tables, optionally with hashed keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
import pandas as pd

from fairlead.clock import MICROS, to_datetime
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.latency import GROWTH
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.slo import STEP_S
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.parts import micros_of
from fairlead.pipeline.reading.engine import quoted_name
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.period import HOUR_S, STATEMENTS, Period, period
from fairlead.pipeline.runs import RUNS, Check
from fairlead.pipeline.steps import MOST_POINTS

TOP = 12
"""Number of keys, names and errors shown one by one; the others share one row."""

QUEUES_DRAWN = 4
"""Number of queues with pictures of their own: those with most worker time."""

MOST_QUEUES = 1000
"""Maximum number of queues listed. Queues are few, because they are named in code."""

MOST_OBJECTIVES = 50
"""Maximum number of objectives in the report; it lists those with the least budget left."""

MOST_ERROR_TYPES = 5
"""Maximum number of error types that the chart of failures draws in their own colour; all other
types share one colour."""

MOST_REASONS = 20
"""Maximum number of reasons of quarantined rows, most frequent first."""

STATES = ["ok", "ticket", "page"]
"""States of an objective, the worst one last."""

MOST_JOBS = 1000
HOURS_OF_WEEK = 168
_FIRST_MONDAY_US = 4 * 86_400 * MICROS
"""1970-01-05, in microseconds since the epoch."""

LOAD_BINS = 20
SLOWDOWN_STEP = 1.1
"""Ratio of neighbouring bins of the slowdown; bin b starts at SLOWDOWN_STEP ** b."""
SLOWDOWN_BINS = 110
"""Last bin of the slowdown, which has no upper bound: 1.1 ** 110 is about 36,000."""

_POINTS = MOST_POINTS + 2
"""Maximum number of steps of a period, whose bounds are rounded outwards."""

KEY_COLUMNS = ("fairness_key", "max_lag_key", "noisy_key")
TEXT_COLUMNS = ("error_text", "error")
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


@dataclass(frozen=True)
class ReportData:
    """Frames of the statements of report.sql, most with the same names, which say what their
    columns are. Instants in frames are UTC without a time zone."""

    period: Period
    made_at: int
    """Microseconds since the epoch."""
    exported_until: int
    """Last export of any row, in microseconds since the epoch; 0 if no row was exported."""
    built_until: int
    """Instant up to which exported rows are in the tables, in microseconds since the epoch; 0 if
    the tables were never built."""
    unexported: int | None
    """Attempts in the store that are not in the lake; None if the store was not read."""
    hashed: bool
    """Whether hashes replace the keys."""
    freshness: pd.DataFrame
    quarantined: pd.DataFrame
    runs: pd.DataFrame
    queues: pd.DataFrame
    keys: pd.DataFrame
    service: pd.DataFrame
    fairness: pd.DataFrame
    fairness_by_queue: pd.DataFrame
    pickup: pd.DataFrame
    names: pd.DataFrame
    hours_of_week: pd.DataFrame
    slowdown: pd.DataFrame
    objectives: pd.DataFrame
    budgets: pd.DataFrame
    failures: pd.DataFrame
    failures_over_time: pd.DataFrame
    storms: pd.DataFrame
    cost: pd.DataFrame

    @property
    def drawn(self) -> list[str]:
        """Queues that have their own charts."""
        return list(self.queues["queue"][:QUEUES_DRAWN])

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Frames by name."""
        return {
            name: frame for name, frame in vars(self).items() if isinstance(frame, pd.DataFrame)
        }


def gather(
    tables: Frames,
    now: int,
    selection: Selection = Selection(),
    on_rows: Callable[[str, int], None] = lambda part, rows: None,
) -> ReportData:
    """Read and aggregate the tables.

    now: microseconds since the epoch. on_rows: callback with the name and the number of rows of
    each frame. Raise ConfigurationError if the period is empty or memory is short, BrokenLake if
    the lake is damaged, CheckFailed for more rows than a frame may have.
    """
    seen, top = tables.seen, selection.top
    when = period(tables.parts(SERVICE), now, selection.since, selection.until, seen.build.zone)
    exported = (seen.tables.get(table) for table in (ATTEMPTS, EVENTS))

    def counted(part: str, frame: pd.DataFrame) -> pd.DataFrame:
        on_rows(part, len(frame))
        return frame

    def read(part: str, at_most: int, least_s: int = 0, **given: Any) -> pd.DataFrame:
        return counted(part, when.frame(tables, part, at_most, least_s, **given))

    queues = read("queues", MOST_QUEUES)
    drawn = list(queues["queue"][:QUEUES_DRAWN])
    keys = read("keys", QUEUES_DRAWN * (top + 1), queues=drawn, top=top)
    ranked = keys.dropna(subset=["rank"])[["queue", "fairness_key", "rank"]]
    shown = ranked.astype({"rank": int}).to_dict("records")
    objectives = read("objectives", MOST_OBJECTIVES, slo_step_s=STEP_S)
    ids = list(objectives["slo_id"])
    data = ReportData(
        period=when,
        made_at=now,
        exported_until=max((at.exported_at for at in exported if at is not None), default=0),
        built_until=seen.build.until,
        unexported=selection.unexported,
        hashed=selection.hash_keys,
        freshness=counted("freshness", _freshness(tables, now)),
        quarantined=counted("quarantined", _quarantined(tables)),
        runs=counted("runs", _runs(tables)),
        queues=queues,
        keys=keys,
        service=read("service", _POINTS * len(keys), shown=shown),
        fairness=read("fairness", QUEUES_DRAWN * _POINTS, queues=drawn),
        fairness_by_queue=read("fairness_by_queue", MOST_QUEUES),
        pickup=read("pickup", QUEUES_DRAWN * _POINTS, HOUR_S, queues=drawn, growth=GROWTH),
        names=read("names", top, growth=GROWTH),
        hours_of_week=read(
            "hours_of_week", HOURS_OF_WEEK, first_monday=_FIRST_MONDAY_US, growth=GROWTH
        ),
        slowdown=read(
            "slowdown",
            LOAD_BINS * (SLOWDOWN_BINS + 1),
            load_bins=LOAD_BINS,
            slowdown_step=SLOWDOWN_STEP,
            slowdown_bins=SLOWDOWN_BINS,
        ),
        objectives=objectives,
        budgets=read("budgets", _POINTS * len(ids), STEP_S, slo_ids=ids, states=STATES),
        failures=read("failures", top),
        failures_over_time=read(
            "failures_over_time", (MOST_ERROR_TYPES + 1) * _POINTS, HOUR_S, types=MOST_ERROR_TYPES
        ),
        storms=read("storms", top),
        cost=read("cost", top + 1, top=top),
    )
    return with_hashed_keys(data) if selection.hash_keys else data


def _freshness(tables: Frames, now: int) -> pd.DataFrame:
    """Return one row for each table, in the order of the data dictionary.

    Columns: table, rows, newest (greatest instant up to `now`, because a clock may have been wrong;
    null if there is none), written_at (last change; null without one). Raise BrokenLake.
    """
    found = []
    for table in (table for table in TABLES if table != RUNS):
        at = tables.seen.tables.get(table)
        written = pd.NaT if at is None else to_datetime(at.written_at).replace(tzinfo=None)
        count = 0 if at is None else sum(file.rows for file in at.files)
        # Read the newest partition that began by now.
        past = {table: [part for part in tables.parts(table) if micros_of(part) <= now][-1:]}
        statement = STATEMENTS["newest"].replace("{instant}", quoted_name(table.instant))
        statement = statement.replace("{rows}", f"{{{table.name}}}")
        newest = tables.frame(statement, {"now": now}, past.get, at_most=1)
        found.append(
            {"table": table.name, "rows": count, "newest": newest.iloc[0, 0], "written_at": written}
        )
    return pd.DataFrame(found)


def _quarantined(tables: Frames) -> pd.DataFrame:
    """Return the quarantined rows of all time by table and reason, most frequent first."""
    most = MOST_REASONS
    return tables.frame(STATEMENTS["quarantined"], {"most": most}, at_most=most)


def _runs(tables: Frames) -> pd.DataFrame:
    """Return the last run of each job, with the number of its checks, and its failed checks as
    text."""
    runs = tables.frame(STATEMENTS["last_runs"], at_most=MOST_JOBS)
    checks = [msgspec.json.decode(each, type=list[Check]) for each in runs["checks"]]
    failed = ["; ".join(str(check) for check in each if not check.holds) for each in checks]
    return runs.assign(checks=list(map(len, checks)), failed_checks=failed)


def with_hashed_keys(data: ReportData) -> ReportData:
    """Return the data with each key replaced by its hash, and each free text by HIDDEN."""
    hidden = {}
    for field, frame in data.frames.items():
        keys = {
            name: frame[name].map(_hidden, na_action="ignore")
            for name in KEY_COLUMNS
            if name in frame
        }
        texts = {
            name: frame[name].where(frame[name].isna(), HIDDEN)
            for name in TEXT_COLUMNS
            if name in frame
        }
        hidden[field] = frame.assign(**keys, **texts)
    return replace(data, **hidden)


def hashed_key(key: str) -> str:
    """Return the first ten hexadecimal digits of the key's SHA-256, which are the same in every
    report. A person who guesses a key can verify the guess."""
    return sha256(key.encode(errors="surrogatepass")).hexdigest()[:10]


def _hidden(key: str) -> str:
    return key if key == ALL else hashed_key(key)
