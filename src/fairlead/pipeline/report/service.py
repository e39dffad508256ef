"""Sections about service by queue and by key: share against entitlement, lag, evenness."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from markupsafe import Markup
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fairlead.clock import MICROS
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.canvas import (
    BAD,
    COLOURS,
    REST,
    SOFT,
    drawing,
    label,
    legend_right,
    on_grid,
    time_axis,
)
from fairlead.pipeline.report.data import TOP, ReportData
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.report.section import Part, Section, missing_rows

_LAGGING = 5
"""Number of keys listed by lag."""
_OTHERS = len(COLOURS) + 1
"""Rank, in pictures, of the keys without a colour of their own."""
_COLOURS = dict(enumerate([*COLOURS, REST], start=1))
"""Colours by rank."""


def load(data: ReportData) -> Section:
    """Return the queues, by worker time."""
    queues = data.queues
    if not len(queues):
        return missing_rows(data, SERVICE)
    rows = queues.assign(
        part=queues["busy_us"] / max(queues["busy_us"].sum(), 1),
        workers=queues["busy_us"] / data.period.length_us,
        failed_part=queues["failed"] / queues["started"],
        wasted_part=queues["wasted_us"] / queues["busy_us"],
    )
    return [Part("load", "Queues", rows, TOP)]


def share(data: ReportData) -> Section:
    """Return the service and the entitlement of each key of the drawn queues."""
    parts = []
    for number, name, keys, steps in _by_queue(data):
        got, due = keys["busy_us"], keys["entitled_us"]
        rows = keys.assign(
            is_rest=keys["rank"].isna(),
            part=got / max(got.sum(), 1),
            entitled_part=due / max(due.sum(), 1),
            got=(got / due).where(due > 0),
        ).sort_values(["is_rest", "busy_us"], ascending=[True, False], kind="stable")
        title = f"{name}: got, and was entitled to"
        svg = _draw_share(steps, keys, data.period, f"share-{number}")
        parts.append(
            Part("share", f"Keys of {name} in the whole period", rows, title=title, svg=svg)
        )
    return parts or missing_rows(data, TENANT_SHARE)


def lag(data: ReportData) -> Section:
    """Return the worker time owed to each key of the drawn queues."""
    parts = []
    for number, name, keys, steps in _by_queue(data):
        behind = keys.dropna(subset=["rank"]).sort_values("lag_us", ascending=False, kind="stable")
        svg = _draw_lag(steps, keys, data.period, f"lag-{number}")
        caption = f"Keys of {name}, the one farthest behind first"
        parts.append(Part("lag", caption, behind, _LAGGING, f"{name}: lag", svg))
    return parts or missing_rows(data, TENANT_SHARE)


def fairness(data: ReportData) -> Section:
    """Return the evenness of the queues."""
    if not len(data.fairness_by_queue):
        return missing_rows(data, FAIRNESS)
    windows = numbers.duration(data.period.window_s * MICROS)
    caption = (
        f"In windows of {windows}; a window is judged if at least two keys had waiting tasks all"
        " the time"
    )
    title = "Evenness, and keys that had to wait"
    return [Part("fairness", caption, data.fairness_by_queue, TOP, title, _draw_evenness(data))]


def _by_queue(data: ReportData) -> Iterator[tuple[int, str, pd.DataFrame, pd.DataFrame]]:
    """Yield the position, the shown name, the keys and the steps of each drawn queue with steps."""
    for number, queue in enumerate(data.drawn):
        keys, steps = (rows[rows["queue"] == queue] for rows in (data.keys, data.service))
        if len(steps):
            yield number, numbers.shortened(queue), keys, steps


def _draw_share(steps: pd.DataFrame, keys: pd.DataFrame, period: Period, name: str) -> Markup:
    """Draw two charts on one scale: the workers that each key of a queue kept busy, and below them
    the workers that each key was entitled to."""
    with drawing(name, 4.6) as canvas:
        axes = canvas.figure.subplots(2, 1, sharex=True, sharey=True)
        for ax, column, title in (
            (axes[0], "busy_us", "got"),
            (axes[1], "entitled_us", "was entitled to"),
        ):
            workers = _by_rank(steps, column, period) / (period.step_s * MICROS)
            colours = [_COLOURS[rank] for rank in workers]
            ax.stackplot(workers.index, workers.T, colors=colours, step="post", linewidth=0)
            ax.set_title(title)
            ax.set_ylabel("workers")
            ax.set_ylim(bottom=0)
            time_axis(ax, period)
        stacked = list(workers)[::-1]
        handles = [Patch(color=_COLOURS[rank]) for rank in stacked]
        labels = [_label(keys, rank) for rank in stacked]
        legend_right(canvas.figure, handles, labels, "key (as stacked)")
    return canvas.svg


def _draw_lag(steps: pd.DataFrame, keys: pd.DataFrame, period: Period, name: str) -> Markup:
    """Draw two charts on different scales: the worker time that is owed to each key of a queue, and
    below it the worker time by which other keys are ahead."""
    lags = _by_rank(steps.dropna(subset=["rank"]), "lag_us", period)
    lags = lags.drop(columns=_OTHERS, errors="ignore")
    with drawing(name, 3.6) as canvas:
        behind, ahead = canvas.figure.subplots(2, 1, sharex=True)
        for ax, us, what in (
            (behind, lags.clip(lower=0), "behind"),
            (ahead, -lags.clip(upper=0), "ahead"),
        ):
            greatest = max(us.max(axis=None), MICROS)
            unit, size = numbers.unit_of(greatest, days=False)
            lines = []
            for rank in us:
                style = "-" if rank <= len(COLOURS) // 2 else "--"
                shape = {"color": _COLOURS[rank], "linestyle": style, "drawstyle": "steps-post"}
                lines += ax.plot(us.index, us[rank] / size, **shape)
            ax.set_title(what)
            ax.set_ylabel(f"worker-{unit}")
            ax.set_ylim(0, 1.08 * greatest / size)
            time_axis(ax, period)
        ahead.invert_yaxis()
        legend_right(canvas.figure, lines, [_label(keys, rank) for rank in lags], "key")
    return canvas.svg


def _draw_evenness(data: ReportData) -> Markup:
    """Draw two charts for each queue: on the left Jain's index, as the mean and the least of the
    windows; on the right the numbers of backlogged and starved keys."""
    queues = data.drawn
    with drawing("fairness", 0.8 + 1.75 * len(queues)) as canvas:
        grid = canvas.figure.subplots(len(queues), 2, sharex=True, squeeze=False)
        for (even, many), queue in zip(grid, queues, strict=True):
            rows = data.fairness[data.fairness["queue"] == queue]
            steps = on_grid(rows.set_index("at"), data.period)
            jain, least = steps["jain"], steps["jain_least"]
            even.set_title(f"{label(queue)}: Jain's index")
            even.fill_between(jain.index, least, jain, color=COLOURS[4], alpha=0.6, linewidth=0)
            even.plot(jain.index, jain, color=COLOURS[0], marker=".", markersize=3)
            even.axhline(1, color=SOFT, linewidth=0.8, linestyle="--")
            even.set_ylim(0, 1.06)
            even.set_ylabel("1 = even")
            if jain.isna().all():
                centre = {"ha": "center", "va": "center", "transform": even.transAxes}
                even.text(0.5, 0.5, "never two keys waiting all the time", color=SOFT, **centre)
            waiting, starved = steps["n_keys"].fillna(0), steps["starved_keys"].fillna(0)
            area = {"color": REST, "step": "post", "linewidth": 0}
            many.set_title(f"{label(queue)}: keys")
            many.fill_between(steps.index, waiting, label="waiting all the time", **area)
            many.plot(steps.index, starved, color=BAD, drawstyle="steps-post", label="starved")
            many.set_ylabel("keys")
            many.set_ylim(0, 1.1 * max(1, waiting.max(), starved.max()))
            many.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            time_axis(even, data.period)
        handles, labels = grid[0, 1].get_legend_handles_labels()
        canvas.figure.legend(handles, labels, loc="outside upper right", ncols=2)
    return canvas.svg


def _by_rank(steps: pd.DataFrame, column: str, period: Period) -> pd.DataFrame:
    """Return a column for each rank with a colour and a last one for all others, and a row for each
    step, 0 without data."""
    drawn = steps["rank"].fillna(_OTHERS).clip(upper=_OTHERS).astype(int)
    wide = steps.assign(drawn=drawn).pivot_table(
        index="at", columns="drawn", values=column, aggfunc="sum"
    )
    return on_grid(wide, period).fillna(0)


def _label(keys: pd.DataFrame, rank: int) -> str:
    if rank != _OTHERS:
        return label(keys.loc[keys["rank"] == rank, "fairness_key"].iloc[0])
    others = keys[keys["rank"].isna() | (keys["rank"] > len(COLOURS))]
    return f"{others['keys'].sum():,} others"
