"""Sections about objectives and failures."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.pipeline.gold.failures import FAILURES
from fairlead.pipeline.gold.slo import SLO
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import Grid, GridColumn, grid
from fairlead.pipeline.report.pictures import trouble as pictures
from fairlead.pipeline.report.pictures.canvas import COLOURS
from fairlead.pipeline.report.sections import Picture, Section, without

_OBJECTIVES = (
    GridColumn("objective", "slo_id"),
    GridColumn("state", "state", "state"),
    GridColumn("must be good", "objective", "percent"),
    GridColumn("good", "good", "count"),
    GridColumn("bad", "bad", "count"),
    GridColumn("was good", "good_part", "percent"),
    GridColumn("budget left", "budget_left", "percent"),
    GridColumn("burn 1 h", "burn_1h", "ratio"),
    GridColumn("6 h", "burn_6h", "ratio"),
    GridColumn("3 d", "burn_3d", "ratio"),
    GridColumn("time in page", "page_us", "duration"),
    GridColumn("in ticket", "ticket_us", "duration"),
)
_FAILURES = (
    GridColumn("error", "error_type"),
    GridColumn("earliest text", "error_text", "text"),
    GridColumn("task", "name"),
    GridColumn("queue", "queue"),
    GridColumn("failed runs", "n", "count"),
    GridColumn("wasted", "wasted_us", "work"),
    GridColumn("runs a task", "retry_amplification", "ratio"),
    GridColumn("first seen", "first_seen", "instant"),
    GridColumn("last seen", "last_seen", "instant"),
)
_STORMS = (
    GridColumn("hour", "hour", "instant"),
    GridColumn("error", "error_type"),
    GridColumn("task", "name"),
    GridColumn("queue", "queue"),
    GridColumn("failed runs", "n", "count"),
    GridColumn("wasted", "wasted_us", "work"),
    GridColumn("runs a task", "retry_amplification", "ratio"),
    GridColumn("last seen", "last_seen", "instant"),
    GridColumn("recovered", "recovered_at", "instant"),
)


def objectives(data: ReportData) -> Section:
    """Return the error budgets and states."""
    if not len(data.objectives):
        return without(data, SLO, "Define objectives as [[slo]] in its settings file.")
    rows = data.objectives
    rows = rows.assign(
        good_part=rows["good"] / (rows["good"] + rows["bad"]),
        page_us=rows["page_s"] * MICROS,
        ticket_us=rows["ticket_s"] * MICROS,
    )
    drawn = list(rows["slo_id"][: len(COLOURS)])
    svg = pictures.budgets(data.budgets, drawn, data.period, "objectives")
    caption = (
        "At the end of the period, least budget first; good, bad and the times cover the whole"
        " period"
    )
    return Section([Picture.of("Error budgets and states", svg), grid(caption, rows, _OBJECTIVES)])


def failures(data: ReportData) -> Section:
    """Return the failed runs and the storms."""
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
