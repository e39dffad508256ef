"""Sections of the report about objectives and failed runs."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.slo import SLO
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import Grid, GridColumn, grid
from fairlead.pipeline.report.pictures import reliability as pictures
from fairlead.pipeline.report.pictures.canvas import COLOURS
from fairlead.pipeline.report.sections import Picture, Section, missing_rows

_OBJECTIVES = (
    GridColumn("objective", "slo_id"),
    GridColumn("state", "state", "state"),
    GridColumn("target", "objective", "percent"),
    GridColumn("good", "good", "count"),
    GridColumn("bad", "bad", "count"),
    GridColumn("attained", "good_part", "percent"),
    GridColumn("budget left", "budget_left", "percent"),
    GridColumn("burn rate, 1 h", "burn_1h", "ratio"),
    GridColumn("burn rate, 6 h", "burn_6h", "ratio"),
    GridColumn("burn rate, 3 d", "burn_3d", "ratio"),
    GridColumn("time in state page", "page_us", "duration"),
    GridColumn("time in state ticket", "ticket_us", "duration"),
)
_FAILURES = (
    GridColumn("error", "error_type"),
    GridColumn("first error text", "error_text", "text"),
    GridColumn("task", "name"),
    GridColumn("queue", "queue"),
    GridColumn("failed runs", "n", "count"),
    GridColumn("wasted", "wasted_us", "work"),
    GridColumn("runs per task", "retry_amplification", "ratio"),
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
    GridColumn("runs per task", "retry_amplification", "ratio"),
    GridColumn("last seen", "last_seen", "instant"),
    GridColumn("recovered", "recovered_at", "instant"),
)


def objectives(data: ReportData) -> Section:
    """Return the section with the error budget and the alert state of each objective."""
    if not len(data.objectives):
        return missing_rows(
            data, SLO, "Define objectives as [[slo]] tables in the settings file of the build."
        )
    rows = data.objectives
    rows = rows.assign(
        good_part=rows["good"] / (rows["good"] + rows["bad"]),
        page_us=rows["page_s"] * MICROS,
        ticket_us=rows["ticket_s"] * MICROS,
    )
    drawn = list(rows["slo_id"][: len(COLOURS)])
    svg = pictures.budgets(data.budgets, drawn, data.period, "objectives")
    caption = (
        "State and budget at the end of the period, least budget first; the counts and the times"
        " cover the whole period"
    )
    return Section([Picture.of("Error budgets and states", svg), grid(caption, rows, _OBJECTIVES)])


def failures(data: ReportData) -> Section:
    """Return the section with the failed runs, the errors and the failure storms."""
    if not len(data.failures):
        return (
            Section([], "No run failed in this period.")
            if len(data.queues)
            else missing_rows(data, FAILURES)
        )
    svg = pictures.failures(data.failures_over_time, data.storms, data.period, "failures")
    parts: list[Picture | Grid] = [
        Picture.of("Failed runs", svg),
        grid("Errors, most frequent first", data.failures, _FAILURES),
    ]
    if len(data.storms):
        parts.append(grid("Failure storms, latest first", data.storms, _STORMS))
    return Section(parts)
