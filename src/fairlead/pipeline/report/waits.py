"""Sections about waits: over time, by hour of the week, under load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fairlead.clock import MICROS
from fairlead.pipeline.definitions.latency import LATENCY_HIST
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.report.canvas import (
    BAD,
    COLOURS,
    drawing,
    duration_axis,
    label,
    on_grid,
    time_axis,
)
from fairlead.pipeline.report.data import HOURS_OF_WEEK, LOAD_BINS, SLOWDOWN_STEP, ReportData
from fairlead.pipeline.report.numbers import count
from fairlead.pipeline.report.period import HOUR_S, Period
from fairlead.pipeline.report.section import Part, Section, missing_rows

_BANDS = 5
_HOURS_LISTED = 8
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_LINES = (("p50", COLOURS[6], "-"), ("p99", COLOURS[0], "-"), ("p999", BAD, ":"))
_PARTS = {"p50": "half", "p99": "99 %", "p999": "99.9 %"}
_DOTS: dict[str, Any] = {"marker": "o", "markersize": 3}
_CELLS: dict[str, Any] = {"edgecolors": "white", "linewidth": 0.5}
_MUCH, _LONG = (colormaps[name].resampled(32) for name in ("YlGnBu", "YlOrBr"))
"""Colour maps with few shades, so that the scale beside a map is drawn as shapes, not as an
image."""

_BINS_A_ROW = 5
"""Number of slowdown bins drawn as one row."""


def pickup(data: ReportData) -> Section:
    """Return pickup over time by queue, and by name."""
    if not len(data.pickup):
        return missing_rows(data, LATENCY_HIST)
    caption = "By name over the whole period, longest pickup first"
    svg = _draw_pickup(data)
    return [Part("pickup", caption, data.names, title="Pickup over time", svg=svg)]


def week(data: ReportData) -> Section:
    """Return load and waits by hour of the week."""
    hours = data.hours_of_week
    if not len(hours):
        return missing_rows(data, LATENCY_HIST)
    seen = _times_seen(data.period)
    rows = hours.assign(
        when=[f"{_DAYS[hour // 24]} {hour % 24:02}:00" for hour in hours["hour"]],
        workers=hours["busy_us"] / (hours["hour"].map(seen) * HOUR_S * MICROS),
    ).sort_values("p99", ascending=False, kind="stable")
    title = "Load and pickup by hour of the week"
    caption = "The hours with the longest pickup; all queues together"
    return [Part("week", caption, rows, _HOURS_LISTED, title, _draw_week(rows, seen))]


def slowdown(data: ReportData) -> Section:
    """Return slowdown under load."""
    if not len(data.slowdown):
        return missing_rows(data, TASKS)
    bands, width = _slowdown_percentiles(data.slowdown, _BANDS), 100 // _BANDS
    rows = bands.assign(
        band=[f"{load * width} to {(load + 1) * width} %" for load in bands["load"]]
    )
    title, caption = "Tasks by load and slowdown", "Slowdown by load of the queue; within 5 %"
    return [Part("slowdown", caption, rows, title=title, svg=_draw_slowdown(data.slowdown))]


def _draw_pickup(data: ReportData) -> Markup:
    """Draw one picture for each queue, on one logarithmic scale: pickup that half, 99 % and 99.9 %
    of the runs did not exceed."""
    waits, queues = data.pickup, data.drawn
    columns = min(len(queues), 2)
    rows = -(-len(queues) // columns)
    step_s = data.period.step_of(HOUR_S)
    least, greatest = max(waits["p50"].min(), 1), max(waits["p999"].max(), 1)
    with drawing("pickup", 0.4 + 2.2 * rows) as canvas:
        grid = canvas.figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax, queue in zip(grid.flat, queues, strict=False):
            steps = on_grid(waits[waits["queue"] == queue].set_index("at"), data.period, step_s)
            for measure, colour, style in _LINES:
                line = {"color": colour, "linestyle": style, "marker": ".", "markersize": 3}
                ax.plot(steps.index, steps[measure].clip(lower=1), label=_PARTS[measure], **line)
            ax.set_title(label(queue))
            ax.set_yscale("log")
            ax.set_ylim(least / 1.5, greatest * 1.5)
            duration_axis(ax.yaxis, least, greatest)
            time_axis(ax, data.period)
        for ax in grid[:, 0]:
            ax.set_ylabel("pickup")
        for ax in grid.flat[len(queues) :]:
            ax.set_visible(False)
            grid[-2, -1].xaxis.set_tick_params(labelbottom=True)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        canvas.figure.legend(handles, labels, loc="outside upper right", ncols=3, title=None)
    return canvas.svg


def _draw_week(hours: pd.DataFrame, seen: pd.Series) -> Markup:
    """Draw two maps of the week, hours UTC: left the mean number of busy workers, right the pickup
    that 99 % of the runs did not exceed."""
    by_hour = hours.set_index("hour").reindex(range(HOURS_OF_WEEK))
    workers = by_hour["workers"].fillna(0).where(seen > 0)
    waits = by_hour["p99"].astype(float).clip(lower=1)
    with drawing("week", 2.9) as canvas:
        left, right = canvas.figure.subplots(1, 2)
        _set_up_week(left, "busy workers")
        load = left.pcolormesh(_by_day(workers), cmap=_MUCH, vmin=0, **_CELLS)
        canvas.figure.colorbar(load, ax=left, label="workers", pad=0.01)
        _set_up_week(right, "pickup, 99 %")
        if waits.notna().any():
            scale = LogNorm(waits.min(), max(waits.max(), 1.01 * waits.min()))
            slow = right.pcolormesh(_by_day(waits), cmap=_LONG, norm=scale, **_CELLS)
            bar = canvas.figure.colorbar(slow, ax=right, pad=0.01)
            duration_axis(bar.ax.yaxis, scale.vmin, scale.vmax)  # type: ignore[arg-type]
    return canvas.svg


def _by_day(hours: pd.Series) -> Any:
    return np.ma.masked_invalid(hours.to_numpy().reshape(len(_DAYS), 24))


def _set_up_week(ax: Axes, title: str) -> None:
    ax.set_title(title)
    ax.set_facecolor("#f2f2f2")
    ax.grid(False)
    ax.set_ylim(len(_DAYS), 0)
    ax.set_yticks(np.arange(len(_DAYS)) + 0.5, [day[:3] for day in _DAYS])
    ax.set_xticks(range(0, 25, 3))
    ax.set_xlabel("hour of the day (UTC)")
    ax.tick_params(length=0)


def _draw_slowdown(tasks: pd.DataFrame) -> Markup:
    """Draw tasks by slowdown and by load when they became ready, darker for more tasks, with lines
    through the percentiles."""
    row = (tasks["slowdown"] // _BINS_A_ROW).rename("row")
    rows = range(max(row.max() + 1, 4))
    counts = tasks.groupby([row, "load"])["n"].sum().unstack()
    counts = counts.reindex(index=rows, columns=range(LOAD_BINS)).astype(float)
    by_load = _slowdown_percentiles(tasks)
    loads = np.arange(LOAD_BINS + 1) / LOAD_BINS * 100
    slow = SLOWDOWN_STEP ** (_BINS_A_ROW * np.arange(len(rows) + 1.0))
    with drawing("slowdown", 3.4) as canvas:
        ax = canvas.figure.subplots()
        scale = LogNorm(1, max(counts.max(axis=None), 2))
        mesh = ax.pcolormesh(loads, slow, counts.to_numpy(), cmap=_MUCH, norm=scale, **_CELLS)
        shown = FuncFormatter(lambda n, _: count(n))
        canvas.figure.colorbar(mesh, ax=ax, label="tasks", pad=0.01, format=shown)
        middles = (by_load["load"] + 0.5) / LOAD_BINS * 100
        for part, style in (("p50", "-"), ("p99", ":")):
            ax.plot(middles, by_load[part], style, color=BAD, label=_PARTS[part], **_DOTS)
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


def _times_seen(period: Period) -> pd.Series:
    """Return how often the period contains each hour of the week."""
    hours = pd.date_range(*period.naive, freq="h", inclusive="left")
    of_week = (hours.day_of_week * 24 + hours.hour).value_counts()
    return of_week.reindex(range(HOURS_OF_WEEK), fill_value=0)


def _slowdown_percentiles(tasks: pd.DataFrame, bands: int = LOAD_BINS) -> pd.DataFrame:
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
    return pd.DataFrame(columns).rename_axis("load").reset_index()
