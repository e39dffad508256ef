"""Data of the report page: small frames read from the tables, optionally with hashed keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime

import pandas as pd

from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.hashing import hashed_key
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.facts import cost, fairness, quality, reliability, service, waits
from fairlead.pipeline.report.period import Period, period

TOP = 12
"""Number of keys, names and errors shown one by one; the others share one row."""

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
    """Frames that the functions in `report.facts` return. The docstrings of the functions describe
    the columns. Instants in frames are UTC without a time zone."""

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
        return list(self.queues["queue"][: service.QUEUES_DRAWN])

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

    queues = counted("queues", service.queues(tables, when))
    drawn = list(queues["queue"][: service.QUEUES_DRAWN])
    keys = counted("keys", service.keys(tables, when, drawn, top))
    objectives = counted("objectives", reliability.objectives(tables, when))
    data = ReportData(
        period=when,
        made_at=now,
        exported_until=quality.exported_until(tables),
        built_until=tables.seen.build.until,
        unexported=selection.unexported,
        hashed=selection.hash_keys,
        freshness=counted("freshness", quality.freshness(tables, now)),
        quarantined=counted("quarantined", quality.quarantined(tables)),
        runs=counted("runs", quality.runs(tables)),
        queues=queues,
        keys=keys,
        service=counted("service", service.over_time(tables, when, keys)),
        fairness=counted("fairness", fairness.over_time(tables, when, drawn)),
        fairness_by_queue=counted("fairness by queue", fairness.by_queue(tables, when)),
        pickup=counted("pickup", waits.pickup_over_time(tables, when, drawn)),
        names=counted("names", waits.by_name(tables, when, top)),
        hours_of_week=counted("hours of the week", waits.by_hour_of_week(tables, when)),
        slowdown=counted("slowdown", waits.slowdown_by_load(tables, when)),
        objectives=objectives,
        budgets=counted("budgets", reliability.budgets_over_time(tables, when, objectives)),
        failures=counted("failures", reliability.failures(tables, when, top)),
        failures_over_time=counted(
            "failures over time", reliability.failures_over_time(tables, when)
        ),
        storms=counted("storms", reliability.storms(tables, when, top)),
        cost=counted("cost", cost.by_key(tables, when, top)),
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
