"""Sections about service by queue and by key."""

from __future__ import annotations

import pandas as pd

from fairlead.clock import to_micros
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import TOP, ReportData
from fairlead.pipeline.report.grids import GridColumn, grid
from fairlead.pipeline.report.pictures import service as pictures
from fairlead.pipeline.report.sections import Picture, Section, missing_rows

_LOAD = (
    GridColumn("queue", "queue"),
    GridColumn("worker time", "busy_us", "work"),
    GridColumn("part", "part", "percent"),
    GridColumn("busy workers", "workers", "ratio"),
    GridColumn("runs", "started", "count"),
    GridColumn("failed", "failed", "count"),
    GridColumn("% of runs", "failed_part", "percent"),
    GridColumn("wasted", "wasted_us", "work"),
    GridColumn("% of time", "wasted_part", "percent"),
)
_SHARE = (
    GridColumn("key", "fairness_key"),
    GridColumn("weight", "weight", "ratio"),
    GridColumn("got", "busy_us", "work"),
    GridColumn("part", "part", "percent"),
    GridColumn("entitled to", "entitled_us", "work"),
    GridColumn("part", "entitled_part", "percent"),
    GridColumn("got / entitled", "got", "ratio"),
)
_LAG = (
    GridColumn("key", "fairness_key"),
    GridColumn("greatest lag", "lag_us", "work"),
    GridColumn("at", "lag_at", "instant"),
)
_FAIRNESS = (
    GridColumn("queue", "queue"),
    GridColumn("windows", "windows", "count"),
    GridColumn("judged", "judged", "count"),
    GridColumn("Jain, median", "jain_median", "ratio"),
    GridColumn("Jain, least", "jain_least", "ratio"),
    GridColumn("in SFQ bound", "within_bound", "count"),
    GridColumn("with starved keys", "starved_windows", "count"),
    GridColumn("greatest lag", "max_lag_us", "work"),
    GridColumn("key", "max_lag_key"),
    GridColumn("noisiest key", "noisy_key"),
    GridColumn("got / entitled", "noisy_score", "ratio"),
)
_LAGGING = 5
"""Number of keys listed by lag."""


def load(data: ReportData) -> Section:
    """Return the queues, by worker time."""
    queues = data.queues
    if not len(queues):
        return missing_rows(data, SERVICE)
    span_us = to_micros(data.period.until) - to_micros(data.period.since)
    rows = queues.assign(
        part=queues["busy_us"] / max(queues["busy_us"].sum(), 1),
        workers=queues["busy_us"] / span_us,
        failed_part=queues["failed"] / queues["started"],
        wasted_part=queues["wasted_us"] / queues["busy_us"],
    )
    return Section([grid("Queues", rows, _LOAD, TOP)])


def share(data: ReportData) -> Section:
    """Return the service and the entitlement of each key: a picture and a table for each drawn
    queue."""
    section = Section([])
    for number, queue in enumerate(data.drawn):
        keys, steps = _of_queue(data.keys, queue), _of_queue(data.service, queue)
        if not len(steps):
            continue
        got, due = keys["busy_us"], keys["entitled_us"]
        rows = keys.assign(
            is_rest=keys["rank"].isna(),
            part=got / max(got.sum(), 1),
            entitled_part=due / max(due.sum(), 1),
            got=(got / due).where(due > 0),
        ).sort_values(["is_rest", "busy_us"], ascending=[True, False], kind="stable")
        title = f"{_name(queue)}: got, and was entitled to"
        section.parts.append(
            Picture.of(title, pictures.share(steps, keys, data.period, f"share-{number}"))
        )
        section.parts.append(grid(f"Keys of {_name(queue)} in the whole period", rows, _SHARE))
    return section if section.parts else missing_rows(data, TENANT_SHARE)


def lag(data: ReportData) -> Section:
    """Return the worker time owed to each key."""
    section = Section([])
    for number, queue in enumerate(data.drawn):
        steps = _of_queue(data.service, queue)
        if not len(steps):
            continue
        keys = _of_queue(data.keys, queue)
        section.parts.append(
            Picture.of(
                f"{_name(queue)}: lag", pictures.lag(steps, keys, data.period, f"lag-{number}")
            )
        )
        behind = keys.dropna(subset=["rank"]).sort_values("lag_us", ascending=False, kind="stable")
        section.parts.append(
            grid(f"Keys of {_name(queue)}, the one farthest behind first", behind, _LAG, _LAGGING)
        )
    return section if section.parts else missing_rows(data, TENANT_SHARE)


def fairness(data: ReportData) -> Section:
    """Return the evenness of the queues."""
    if not len(data.fairness_by_queue):
        return missing_rows(data, FAIRNESS)
    title = "Evenness, and keys that had to wait"
    svg = pictures.evenness(data.fairness, data.drawn, data.period, "fairness")
    windows = numbers.duration(data.period.window_s * 1_000_000)
    caption = (
        f"In windows of {windows}; a window is judged if at least two keys had waiting tasks all"
        " the time"
    )
    return Section([Picture.of(title, svg), grid(caption, data.fairness_by_queue, _FAIRNESS, TOP)])


def _of_queue(rows: pd.DataFrame, queue: str) -> pd.DataFrame:
    return rows[rows["queue"] == queue]


def _name(queue: str) -> str:
    return numbers.shortened(queue, 40)
