"""Sections about who took the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.clock import to_micros
from fairlead.pipeline.gold.fairness import FAIRNESS
from fairlead.pipeline.gold.tenant_share import TENANT_SHARE
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import TOP, ReportData
from fairlead.pipeline.report.grids import Shown, grid
from fairlead.pipeline.report.pictures import service as pictures
from fairlead.pipeline.report.sections import Picture, Section, without
from fairlead.pipeline.silver.service import SERVICE

if TYPE_CHECKING:
    import pandas as pd

_LOAD = (
    Shown("queue", "queue"),
    Shown("worker time", "busy_us", "work"),
    Shown("part", "part", "percent"),
    Shown("busy workers", "workers", "ratio"),
    Shown("runs", "started", "count"),
    Shown("failed", "failed", "count"),
    Shown("% of runs", "failed_part", "percent"),
    Shown("wasted", "wasted_us", "work"),
    Shown("% of time", "wasted_part", "percent"),
)
_SHARE = (
    Shown("key", "fairness_key"),
    Shown("weight", "weight", "ratio"),
    Shown("got", "busy_us", "work"),
    Shown("part", "part", "percent"),
    Shown("entitled to", "entitled_us", "work"),
    Shown("part", "entitled_part", "percent"),
    Shown("got / entitled", "got", "ratio"),
)
_LAG = (
    Shown("key", "fairness_key"),
    Shown("greatest lag", "lag_us", "work"),
    Shown("at", "lag_at", "instant"),
)
_FAIRNESS = (
    Shown("queue", "queue"),
    Shown("windows", "windows", "count"),
    Shown("judged", "judged", "count"),
    Shown("Jain, median", "jain_median", "ratio"),
    Shown("Jain, least", "jain_least", "ratio"),
    Shown("in SFQ bound", "within_bound", "count"),
    Shown("with starved keys", "starved_windows", "count"),
    Shown("greatest lag", "max_lag_us", "work"),
    Shown("of key", "max_lag_key"),
    Shown("loudest key", "noisy_key"),
    Shown("got / entitled", "noisy_score", "ratio"),
)
_LAGGING = 5
"""Keys that are listed by lag."""


def load(data: ReportData) -> Section:
    """The queues, by worker time."""
    queues = data.queues
    if not len(queues):
        return without(data, SERVICE)
    span_us = to_micros(data.period.until) - to_micros(data.period.since)
    rows = queues.assign(
        part=queues["busy_us"] / max(queues["busy_us"].sum(), 1),
        workers=queues["busy_us"] / span_us,
        failed_part=queues["failed"] / queues["started"],
        wasted_part=queues["wasted_us"] / queues["busy_us"],
    )
    return Section([grid("Queues", rows, _LOAD, TOP)])


def share(data: ReportData) -> Section:
    """What each key got and was entitled to, a picture and a table for each queue that is drawn."""
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
    return section if section.parts else without(data, TENANT_SHARE)


def lag(data: ReportData) -> Section:
    """What each key was owed."""
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
    return section if section.parts else without(data, TENANT_SHARE)


def fairness(data: ReportData) -> Section:
    """How even it was."""
    if not len(data.fairness_by_queue):
        return without(data, FAIRNESS)
    title = "Evenness, and keys that had to wait"
    svg = pictures.evenness(data.fairness, data.drawn, data.period, "fairness")
    windows = numbers.duration(data.period.window_s * 1_000_000)
    caption = (
        f"In windows of {windows}; judged are those with two keys or more that had tasks waiting"
        " all the time"
    )
    return Section([Picture.of(title, svg), grid(caption, data.fairness_by_queue, _FAIRNESS, TOP)])


def _of_queue(rows: pd.DataFrame, queue: str) -> pd.DataFrame:
    return rows[rows["queue"] == queue]


def _name(queue: str) -> str:
    return numbers.shortened(queue, 40)
