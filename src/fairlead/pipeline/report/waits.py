"""Sections about waits: over time, by hour of the week, under load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fairlead.clock import MICROS, to_micros
from fairlead.pipeline.definitions.latency import LATENCY_HIST
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.report.canvas import (
    BAD,
    COLOURS,
    Canvas,
    duration_axis,
    label,
    on_grid,
    time_axis,
)
from fairlead.pipeline.report.data import (
    FIRST_MONDAY_S,
    HOURS_OF_WEEK,
    LOAD_BINS,
    SLOWDOWN_STEP,
    ReportData,
)
from fairlead.pipeline.report.grids import GridColumn, grid
from fairlead.pipeline.report.numbers import count
from fairlead.pipeline.report.period import HOUR_S, Period
from fairlead.pipeline.report.section import Picture, Section, missing_rows

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
_LINES = (("p50", COLOURS[6], "-"), ("p99", COLOURS[0], "-"), ("p999", BAD, ":"))
_PARTS = {"p50": "half", "p99": "99 %", "p999": "99.9 %"}
_MUCH, _LONG = (colormaps[name].resampled(32) for name in ("YlGnBu", "YlOrBr"))
"""Colour maps with few shades, so that the scale beside a map is drawn as shapes, not as an
image."""

_BINS_A_ROW = 5
"""Number of slowdown bins drawn as one row."""


def pickup(data: ReportData) -> Section:
    """Return pickup over time by queue, and by name."""
    if not len(data.pickup):
        return missing_rows(data, LATENCY_HIST)
    svg = _draw_pickup(data.pickup, data.drawn, data.period, "pickup")
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
    svg = _draw_hours_of_week(hours, data.period, "week")
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
    svg = _draw_slowdown(data.slowdown, "slowdown")
    caption = "Slowdown by load of the queue; within 5 %"
    return Section([Picture.of("Tasks by load and slowdown", svg), grid(caption, rows, _SLOWDOWN)])


def _draw_pickup(waits: pd.DataFrame, queues: list[str], period: Period, name: str) -> str:
    """Draw one picture for each queue, on one logarithmic scale: pickup that half, 99 % and 99.9 %
    of the runs did not exceed."""
    columns = min(len(queues), 2)
    rows = -(-len(queues) // columns)
    step_s = period.step_of(HOUR_S)
    least, greatest = max(waits["p50"].min(), 1), max(waits["p999"].max(), 1)
    with Canvas(name, 11, 0.4 + 2.2 * rows) as canvas:
        grid = canvas.figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax, queue in zip(grid.flat, queues, strict=False):
            steps = on_grid(waits[waits["queue"] == queue].set_index("at"), period, step_s)
            for measure, colour, style in _LINES:
                shown = steps[measure].clip(lower=1)
                ax.plot(
                    steps.index,
                    shown,
                    color=colour,
                    linestyle=style,
                    marker=".",
                    markersize=3,
                    label=_PARTS[measure],
                )
            ax.set_title(label(queue))
            ax.set_yscale("log")
            ax.set_ylim(least / 1.5, greatest * 1.5)
            duration_axis(ax.yaxis, least, greatest)
            time_axis(ax, period)
        for ax in grid[:, 0]:
            ax.set_ylabel("pickup")
        for ax in grid.flat[len(queues) :]:
            ax.set_visible(False)
            grid[-2, -1].xaxis.set_tick_params(labelbottom=True)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        canvas.figure.legend(handles, labels, loc="outside upper right", ncols=3, title=None)
    return canvas.svg


def _draw_hours_of_week(hours: pd.DataFrame, period: Period, name: str) -> str:
    """Draw two maps of the week, hours UTC: left the mean number of busy workers, right the pickup
    that 99 % of the runs did not exceed."""
    seen = np.array(times_seen(period))
    by_hour = hours.set_index("hour").reindex(range(HOURS_OF_WEEK))
    workers = np.where(
        seen > 0, by_hour["busy_us"].fillna(0) / np.maximum(seen, 1) / (HOUR_S * MICROS), np.nan
    )
    waits = by_hour["p99"].astype(float).clip(lower=1).to_numpy()
    with Canvas(name, 11, 2.9) as canvas:
        left, right = canvas.figure.subplots(1, 2)
        _week(left, "busy workers")
        load = left.pcolormesh(
            _week_grid(workers), cmap=_MUCH, vmin=0, edgecolors="white", linewidth=0.5
        )
        canvas.figure.colorbar(load, ax=left, label="workers", pad=0.01)
        _week(right, "pickup, 99 %")
        if np.isfinite(waits).any():
            scale = LogNorm(np.nanmin(waits), max(np.nanmax(waits), 1.01 * np.nanmin(waits)))
            slow = right.pcolormesh(
                _week_grid(waits), cmap=_LONG, norm=scale, edgecolors="white", linewidth=0.5
            )
            bar = canvas.figure.colorbar(slow, ax=right, pad=0.01)
            duration_axis(bar.ax.yaxis, scale.vmin, scale.vmax)  # type: ignore[arg-type]
    return canvas.svg


def _draw_slowdown(tasks: pd.DataFrame, name: str) -> str:
    """Draw tasks by slowdown and by load when they became ready, darker for more tasks, with lines
    through the percentiles."""
    rows = -(-(int(tasks["slowdown"].max()) + 1) // _BINS_A_ROW)
    counts = np.full((max(rows, 4), LOAD_BINS), np.nan)
    summed = tasks.groupby([tasks["slowdown"] // _BINS_A_ROW, "load"])["n"].sum()
    for (row, load), n in summed.items():
        counts[row, load] = n
    by_load = slowdown_percentiles(tasks)
    with Canvas(name, 11, 3.4) as canvas:
        ax = canvas.figure.subplots()
        loads = np.arange(LOAD_BINS + 1) / LOAD_BINS * 100
        slow = SLOWDOWN_STEP ** (_BINS_A_ROW * np.arange(len(counts) + 1.0))
        scale = LogNorm(1, max(np.nanmax(counts), 2))
        mesh = ax.pcolormesh(
            loads, slow, counts, cmap=_MUCH, norm=scale, edgecolors="white", linewidth=0.5
        )
        canvas.figure.colorbar(
            mesh, ax=ax, label="tasks", pad=0.01, format=FuncFormatter(lambda n, _: count(n))
        )
        middles = (by_load["load"] + 0.5) / LOAD_BINS * 100
        for percentile, style in (("p50", "-"), ("p99", ":")):
            ax.plot(
                middles,
                by_load[percentile],
                style,
                color=BAD,
                marker="o",
                markersize=3,
                label=_PARTS[percentile],
            )
        ax.legend(loc="upper left", title="slowdown not exceeded by", ncols=2, alignment="left")
        ax.set_yscale("log")
        ax.set_ylim(0.9, slow[-1])
        ax.set_xlim(0, 100)
        ax.set_xlabel(
            "load of the queue in the minute the task became ready (% of its busiest minute)"
        )
        ax.set_ylabel("slowdown")
        ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda times, _: f"{times:g}x"))
    return canvas.svg


def _week_grid(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ma.masked_invalid(values.reshape(len(_DAYS), 24))


def _week(ax: Axes, title: str) -> None:
    ax.set_title(title)
    ax.set_facecolor("#f2f2f2")
    ax.grid(False)
    ax.set_ylim(len(_DAYS), 0)
    ax.set_yticks(np.arange(len(_DAYS)) + 0.5, [day[:3] for day in _DAYS])
    ax.set_xticks(range(0, 25, 3))
    ax.set_xlabel("hour of the day (UTC)")
    ax.tick_params(length=0)


def times_seen(period: Period) -> list[int]:
    """Return how often the period contains each hour of the week."""
    first, last = (
        (to_micros(at) // MICROS - FIRST_MONDAY_S) // HOUR_S for at in (period.since, period.until)
    )
    whole_weeks, rest = divmod(last - first, HOURS_OF_WEEK)
    return [whole_weeks + ((hour - first) % HOURS_OF_WEEK < rest) for hour in range(HOURS_OF_WEEK)]


def slowdown_percentiles(tasks: pd.DataFrame, bands: int = LOAD_BINS) -> pd.DataFrame:
    """Return percentiles of the bins of `slowdown_by_load` in `bands` bands of load.

    Columns: load (band, from 0), n, p50, p90, p99 (bounded slowdown, the geometric middle of its
    bin: at most 5 % off).
    """
    band = (tasks["load"] * bands // LOAD_BINS).rename("band")
    bins = tasks.groupby([band, "slowdown"])["n"].sum().reset_index()
    total = bins.groupby("band")["n"].transform("sum")
    up_to = bins.groupby("band")["n"].cumsum()
    middle = SLOWDOWN_STEP ** (bins["slowdown"] + 0.5)
    # Show the first bin as 1, the slowdown of most tasks that did not wait.
    value = middle.where(bins["slowdown"] > 0, 1.0)
    columns = {"n": bins.groupby("band")["n"].sum()}
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        columns[name] = value[up_to >= part * total].groupby(bins["band"]).min()
    return bins.groupby("band")[[]].first().assign(**columns).rename_axis("load").reset_index()
