"""Everything the page shows, gathered from the tables: small frames, in which no key appears that
must not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING

from fairlead.pipeline.build_plan import last_build
from fairlead.pipeline.gold import ALL
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.report.facts import cost, fairness, quality, service, trouble, waits
from fairlead.pipeline.report.period import Period, period
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

TOP = 12
"""Keys, names and errors that are shown one by one; the others are one row."""

KEY_COLUMNS = ("fairness_key", "max_lag_key", "noisy_key")
TELLING_COLUMNS = ("error_text", "error")
"""Free text, in which a key may stand."""

HIDDEN = "(hidden, as keys are)"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rows and keys that a page shows."""

    since: datetime | None = None
    until: datetime | None = None
    """Ends of the time shown, as in `period`."""
    top: int = TOP
    """Keys, names and errors that are shown one by one."""
    hash_keys: bool = False
    """Whether `hashed_key` of a key stands in place of the key."""
    unexported: int | None = None
    """Finished attempts that the store has and the lake has not; None: the store was not asked."""


@dataclass(frozen=True)
class ReportData:
    """What the functions of `facts` answer; see there for the columns. Instants of frames are naive
    and UTC."""

    period: Period
    made_at: int
    """Microseconds."""
    exported_until: int
    """Microseconds: when the exporter last brought something; 0: never."""
    built_until: int
    """Microseconds: what was exported until then is in the tables; 0: never built."""
    unexported: int | None
    """Attempts that are in the store and not in the lake; None: the store was not asked."""
    hashed: bool
    """Whether keys were replaced."""
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
        """The queues that have pictures of their own."""
        return list(self.queues["queue"][: service.QUEUES_DRAWN])


def gather(
    tables: Tables,
    lake: Lake,
    now: int,
    selection: Selection = Selection(),
    on_rows: Callable[[str, int], None] = lambda part, rows: None,
) -> ReportData:
    """Read and aggregate. `now` is in microseconds. Raises ConfigurationError, BrokenLake."""
    when, top = period(tables, now, selection.since, selection.until), selection.top

    def told(part: str, frame: pd.DataFrame) -> pd.DataFrame:
        on_rows(part, len(frame))
        return frame

    queues = told("queues", service.queues(tables, when))
    drawn = list(queues["queue"][: service.QUEUES_DRAWN])
    keys = told("keys", service.keys(tables, when, drawn, top))
    objectives = told("objectives", trouble.objectives(tables, when))
    data = ReportData(
        period=when,
        made_at=now,
        exported_until=quality.exported_until(lake),
        built_until=last_build(lake.root).until,
        unexported=selection.unexported,
        hashed=selection.hash_keys,
        freshness=told("freshness", quality.freshness(tables, now)),
        quarantined=told("quarantined", quality.quarantined(tables)),
        runs=told("runs", quality.runs(lake)),
        queues=queues,
        keys=keys,
        service=told("service", service.over_time(tables, when, keys)),
        fairness=told("fairness", fairness.over_time(tables, when, drawn)),
        fairness_by_queue=told("fairness by queue", fairness.by_queue(tables, when)),
        pickup=told("pickup", waits.pickup_over_time(tables, when, drawn)),
        names=told("names", waits.by_name(tables, when, top)),
        hours_of_week=told("hours of the week", waits.by_hour_of_week(tables, when)),
        slowdown=told("slowdown", waits.slowdown_by_load(tables, when)),
        objectives=objectives,
        budgets=told("budgets", trouble.budgets_over_time(tables, when, objectives)),
        failures=told("failures", trouble.failures(tables, when, top)),
        failures_over_time=told("failures over time", trouble.failures_over_time(tables, when)),
        storms=told("storms", trouble.storms(tables, when, top)),
        cost=told("cost", cost.by_key(tables, when, top)),
    )
    return with_hashed_keys(data) if selection.hash_keys else data


def hashed_key(key: str) -> str:
    """The first ten hexadecimal digits of the key's SHA-256: the same in every report; who guesses
    a key can check it."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:10]


def with_hashed_keys(data: ReportData) -> ReportData:
    """The same without any key: hashed in every column of keys, and free text left out."""
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
            for name in TELLING_COLUMNS
            if name in frame
        }
        hidden[field.name] = frame.assign(**keys, **texts)
    return replace(data, **hidden)


def _hidden(key: str) -> str:
    return key if key == ALL else hashed_key(key)
