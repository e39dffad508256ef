"""Sections about objectives and failures."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.pipeline.gold.failures import FAILURES
from fairlead.pipeline.gold.slo import SLO
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import Grid, Shown, grid
from fairlead.pipeline.report.pictures import trouble as pictures
from fairlead.pipeline.report.pictures.canvas import COLOURS
from fairlead.pipeline.report.sections import Picture, Section, without

_OBJECTIVES = (
    Shown("objective", "slo_id"),
    Shown("state", "state", "state"),
    Shown("must be good", "objective", "percent"),
    Shown("good", "good", "count"),
    Shown("bad", "bad", "count"),
    Shown("was good", "good_part", "percent"),
    Shown("budget left", "budget_left", "percent"),
    Shown("burn 1 h", "burn_1h", "ratio"),
    Shown("6 h", "burn_6h", "ratio"),
    Shown("3 d", "burn_3d", "ratio"),
    Shown("time in page", "page_us", "duration"),
    Shown("in ticket", "ticket_us", "duration"),
)
_FAILURES = (
    Shown("error", "error_type"),
    Shown("earliest text", "error_text", "text"),
    Shown("task", "name"),
    Shown("queue", "queue"),
    Shown("failed runs", "n", "count"),
    Shown("wasted", "wasted_us", "work"),
    Shown("runs a task", "retry_amplification", "ratio"),
    Shown("first seen", "first_seen", "instant"),
    Shown("last seen", "last_seen", "instant"),
)
_STORMS = (
    Shown("hour", "hour", "instant"),
    Shown("error", "error_type"),
    Shown("task", "name"),
    Shown("queue", "queue"),
    Shown("failed runs", "n", "count"),
    Shown("wasted", "wasted_us", "work"),
    Shown("runs a task", "retry_amplification", "ratio"),
    Shown("last seen", "last_seen", "instant"),
    Shown("recovered", "recovered_at", "instant"),
)


def objectives(data: ReportData) -> Section:
    """Budgets and states."""
    if not len(data.objectives):
        return without(data, SLO, "Objectives are [[slo]] in the settings file that it is given.")
    rows = data.objectives
    rows = rows.assign(
        good_part=rows["good"] / (rows["good"] + rows["bad"]),
        page_us=rows["page_s"] * MICROS,
        ticket_us=rows["ticket_s"] * MICROS,
    )
    drawn = list(rows["slo_id"][: len(COLOURS)])
    svg = pictures.budgets(data.budgets, drawn, data.period, "objectives")
    caption = (
        "At the end of the period, the least budget first; good, bad and the times are of the whole"
        " period"
    )
    return Section([Picture.of("Error budgets and states", svg), grid(caption, rows, _OBJECTIVES)])


def failures(data: ReportData) -> Section:
    """What failed, and storms."""
    if not len(data.failures):
        return (
            Section([], "No run failed in this period.")
            if len(data.queues)
            else without(data, FAILURES)
        )
    svg = pictures.failures(data.failures_over_time, data.storms, data.period, "failures")
    parts: list[Picture | Grid] = [
        Picture.of("Failed runs", svg),
        grid("Errors, most frequent first", data.failures, _FAILURES),
    ]
    if len(data.storms):
        parts.append(grid("Storms, latest first", data.storms, _STORMS))
    return Section(parts)
