"""Pictures of waits: over time, by hour of the week, under load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fairlead.clock import MICROS
from fairlead.pipeline.report.facts.waits import (
    HOUR_S,
    HOURS_OF_WEEK,
    LOAD_BINS,
    SLOWDOWN_STEP,
    slowdown_percentiles,
    times_seen,
)
from fairlead.pipeline.report.numbers import count
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.report.pictures.canvas import (
    BAD,
    COLOURS,
    Canvas,
    duration_axis,
    label,
    on_grid,
    time_axis,
)

_LINES = (("p50", COLOURS[6], "-"), ("p99", COLOURS[0], "-"), ("p999", BAD, ":"))
_NAMES = {"p50": "half", "p99": "99 %", "p999": "99.9 %"}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MUCH, _LONG = (colormaps[name].resampled(32) for name in ("YlGnBu", "YlOrBr"))
"""Colour maps with few shades, so that the scale beside a map is drawn as shapes, not as an
image."""

_BINS_A_ROW = 5
"""Number of slowdown bins drawn as one row."""


def pickup(waits: pd.DataFrame, queues: list[str], period: Period, name: str) -> str:
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
                    label=_NAMES[measure],
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


def hours_of_week(hours: pd.DataFrame, period: Period, name: str) -> str:
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


def slowdown(tasks: pd.DataFrame, name: str) -> str:
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
                label=_NAMES[percentile],
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
    ax.set_yticks(np.arange(len(_DAYS)) + 0.5, _DAYS)
    ax.set_xticks(range(0, 25, 3))
    ax.set_xlabel("hour of the day (UTC)")
    ax.tick_params(length=0)
