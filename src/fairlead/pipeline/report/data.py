"""Data of the report page: small frames read from the tables, optionally with hashed keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

import pandas as pd

from fairlead.clock import MICROS
from fairlead.pipeline.definitions.latency import GROWTH
from fairlead.pipeline.definitions.slo import STEP_S
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.hashing import hashed_key
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report import facts
from fairlead.pipeline.report.period import HOUR_S, Period, period
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

HOURS_OF_WEEK = 168
FIRST_MONDAY_S = 4 * 86_400
"""1970-01-05, in seconds since the epoch."""

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
    """Frames of `report.facts`, and of the statements of report.sql with the same names, which say
    what their columns are. Instants in frames are UTC without a time zone."""

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
    def digests(self) -> list[str]:
        """Digests of the keys that the page may show, by which `erase` finds it."""
        frames = [getattr(self, field.name) for field in fields(self)]
        shown = {
            key
            for frame in frames
            if hasattr(frame, "columns")
            for name in KEY_COLUMNS
            if name in frame
            for key in frame[name].dropna()
        }
        return sorted(key if self.hashed else hashed_key(key) for key in shown - {ALL})


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
    zone, top = tables.seen.build.zone, selection.top
    when = period(tables, now, selection.since, selection.until, zone)

    def counted(part: str, frame: pd.DataFrame) -> pd.DataFrame:
        on_rows(part, len(frame))
        return frame

    def read(name: str, at_most: int, least_s: int = 0, **given: Any) -> pd.DataFrame:
        return counted(name, when.frame(tables, name, at_most, least_s, **given))

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
        exported_until=facts.exported_until(tables),
        built_until=tables.seen.build.until,
        unexported=selection.unexported,
        hashed=selection.hash_keys,
        freshness=counted("freshness", facts.freshness(tables, now)),
        quarantined=counted("quarantined", facts.quarantined(tables, MOST_REASONS)),
        runs=counted("runs", facts.runs(tables)),
        queues=queues,
        keys=keys,
        service=read("service", _POINTS * len(keys), shown=shown),
        fairness=read("fairness", QUEUES_DRAWN * _POINTS, queues=drawn),
        fairness_by_queue=read("fairness_by_queue", MOST_QUEUES),
        pickup=read("pickup", QUEUES_DRAWN * _POINTS, HOUR_S, queues=drawn, growth=GROWTH),
        names=read("names", top, growth=GROWTH),
        hours_of_week=read(
            "hours_of_week", HOURS_OF_WEEK, first_monday=FIRST_MONDAY_S * MICROS, growth=GROWTH
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


def with_hashed_keys(data: ReportData) -> ReportData:
    """Return the data with each key replaced by its hash, and each free text by HIDDEN."""
    hidden = {}
    for field in fields(data):
        frame = getattr(data, field.name)
        if not hasattr(frame, "columns"):
            continue
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
        hidden[field.name] = frame.assign(**keys, **texts)
    return replace(data, **hidden)


def _hidden(key: str) -> str:
    return key if key == ALL else hashed_key(key)
