"""Sections about waits."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.pipeline.definitions.latency import LATENCY_HIST
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.facts.waits import HOUR_S, slowdown_percentiles, times_seen
from fairlead.pipeline.report.grids import GridColumn, grid
from fairlead.pipeline.report.pictures import waits as pictures
from fairlead.pipeline.report.sections import Picture, Section, missing_rows

_BANDS = 5
_HOURS_LISTED = 8
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_NAMES = (
    GridColumn("task", "name"),
    GridColumn("queue", "queue"),
    GridColumn("runs", "n", "count"),
    GridColumn("pickup 50 %", "p50", "duration"),
    GridColumn("99 %", "p99", "duration"),
    GridColumn("99.9 %", "p999", "duration"),
    GridColumn("longest", "max_us", "duration"),
    GridColumn("run 50 %", "run_p50", "duration"),
    GridColumn("99 %", "run_p99", "duration"),
)
_WEEK = (
    GridColumn("hour (UTC)", "when"),
    GridColumn("busy workers", "workers", "ratio"),
    GridColumn("runs", "n", "count"),
    GridColumn("pickup 50 %", "p50", "duration"),
    GridColumn("99 %", "p99", "duration"),
)
_SLOWDOWN = (
    GridColumn("load", "band"),
    GridColumn("tasks", "n", "count"),
    GridColumn("slowdown 50 %", "p50", "ratio"),
    GridColumn("90 %", "p90", "ratio"),
    GridColumn("99 %", "p99", "ratio"),
)


def pickup(data: ReportData) -> Section:
    """Return pickup over time by queue, and by name."""
    if not len(data.pickup):
        return missing_rows(data, LATENCY_HIST)
    svg = pictures.pickup(data.pickup, data.drawn, data.period, "pickup")
    caption = "By name over the whole period, longest pickup first"
    return Section([Picture.of("Pickup over time", svg), grid(caption, data.names, _NAMES)])


def week(data: ReportData) -> Section:
    """Return load and waits by hour of the week."""
    hours = data.hours_of_week
    if not len(hours):
        return missing_rows(data, LATENCY_HIST)
    seen = times_seen(data.period)
    rows = hours.assign(
        when=[f"{_DAYS[hour // 24]} {hour % 24:02}:00" for hour in hours["hour"]],
        workers=[
            busy / (seen[hour] * HOUR_S * MICROS)
            for hour, busy in zip(hours["hour"], hours["busy_us"], strict=True)
        ],
    ).sort_values("p99", ascending=False, kind="stable")
    svg = pictures.hours_of_week(hours, data.period, "week")
    caption = "The hours with the longest pickup; all queues together"
    return Section(
        [
            Picture.of("Load and pickup by hour of the week", svg),
            grid(caption, rows, _WEEK, _HOURS_LISTED),
        ]
    )


def slowdown(data: ReportData) -> Section:
    """Return slowdown under load."""
    if not len(data.slowdown):
        return missing_rows(data, TASKS)
    bands = slowdown_percentiles(data.slowdown, _BANDS)
    width = 100 // _BANDS
    rows = bands.assign(
        band=[f"{load * width} to {(load + 1) * width} %" for load in bands["load"]]
    )
    svg = pictures.slowdown(data.slowdown, "slowdown")
    caption = "Slowdown by load of the queue; within 5 %"
    return Section([Picture.of("Tasks by load and slowdown", svg), grid(caption, rows, _SLOWDOWN)])
