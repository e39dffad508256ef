"""Sections about service by queue and by key: share against entitlement, lag, evenness."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fairlead.clock import MICROS, to_micros
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.canvas import (
    BAD,
    COLOURS,
    REST,
    SOFT,
    Canvas,
    label,
    legend_right,
    on_grid,
    time_axis,
)
from fairlead.pipeline.report.data import TOP, ReportData
from fairlead.pipeline.report.grids import GridColumn, grid
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.report.section import Picture, Section, missing_rows

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
REST_RANK = 0
"""Rank, in pictures, of the keys without a colour of their own."""


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
            Picture.of(title, _draw_share(steps, keys, data.period, f"share-{number}"))
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
            Picture.of(f"{_name(queue)}: lag", _draw_lag(steps, keys, data.period, f"lag-{number}"))
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
    svg = _draw_evenness(data.fairness, data.drawn, data.period, "fairness")
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


def _draw_share(service: pd.DataFrame, keys: pd.DataFrame, period: Period, name: str) -> str:
    """Draw two charts on one scale: the workers that each key of a queue kept busy, and below them
    the workers that each key was entitled to."""
    busy, entitled = (
        _by_rank(service, column, period) / (period.step_s * MICROS)
        for column in ("busy_us", "entitled_us")
    )
    with Canvas(name, 11, 4.6) as canvas:
        axes = canvas.figure.subplots(2, 1, sharex=True, sharey=True)
        for ax, workers, title in zip(
            axes, (busy, entitled), ("got", "was entitled to"), strict=True
        ):
            ax.stackplot(
                workers.index,
                [workers[rank] for rank in workers],
                colors=[_colour(rank) for rank in workers],
                step="post",
                linewidth=0,
            )
            ax.set_title(title)
            ax.set_ylabel("workers")
            ax.set_ylim(bottom=0)
            time_axis(ax, period)
        handles = [Patch(color=_colour(rank)) for rank in busy]
        legend_right(
            canvas.figure,
            handles[::-1],
            [_label(keys, rank) for rank in busy][::-1],
            "key (as stacked)",
        )
    return canvas.svg


def _draw_lag(service: pd.DataFrame, keys: pd.DataFrame, period: Period, name: str) -> str:
    """Draw two charts on different scales: the worker time that is owed to each key of a queue, and
    below it the worker time by which other keys are ahead."""
    lags = _by_rank(service.dropna(subset=["rank"]), "lag_us", period).drop(
        columns=REST_RANK, errors="ignore"
    )
    with Canvas(name, 11, 3.6) as canvas:
        behind, ahead = canvas.figure.subplots(2, 1, sharex=True)
        for ax, us, what in (
            (behind, lags.clip(lower=0), "behind"),
            (ahead, -lags.clip(upper=0), "ahead"),
        ):
            greatest = us.max(axis=None)
            unit, size = numbers.unit_of(max(greatest, MICROS), days=False)
            lines = [
                ax.plot(
                    us.index,
                    us[rank] / size,
                    color=_colour(rank),
                    linestyle=_line(rank),
                    drawstyle="steps-post",
                )[0]
                for rank in us
            ]
            ax.set_title(what)
            ax.set_ylabel(f"worker-{unit}")
            ax.set_ylim(0, 1.08 * max(greatest, MICROS) / size)
            time_axis(ax, period)
        ahead.invert_yaxis()
        legend_right(canvas.figure, lines, [_label(keys, rank) for rank in lags], "key")
    return canvas.svg


def _draw_evenness(fairness: pd.DataFrame, queues: list[str], period: Period, name: str) -> str:
    """Draw two charts for each queue: on the left Jain's index, as the mean and the least of the
    windows; on the right the numbers of backlogged and starved keys."""
    with Canvas(name, 11, 0.8 + 1.75 * len(queues)) as canvas:
        grid = canvas.figure.subplots(len(queues), 2, sharex=True, squeeze=False)
        for (even, many), queue in zip(grid, queues, strict=True):
            steps = on_grid(fairness[fairness["queue"] == queue].set_index("at"), period)
            even.set_title(f"{label(queue)}: Jain's index")
            _jain(even, steps)
            many.set_title(f"{label(queue)}: keys")
            _keys(many, steps)
            time_axis(even, period)
        canvas.figure.legend(
            *grid[0, 1].get_legend_handles_labels(), loc="outside upper right", ncols=2
        )
    return canvas.svg


def _jain(ax: Axes, steps: pd.DataFrame) -> None:
    ax.fill_between(
        steps.index, steps["jain_least"], steps["jain"], color=COLOURS[4], alpha=0.6, linewidth=0
    )
    ax.plot(steps.index, steps["jain"], color=COLOURS[0], marker=".", markersize=3)
    ax.axhline(1, color=SOFT, linewidth=0.8, linestyle="--")
    ax.set_ylim(0, 1.06)
    ax.set_ylabel("1 = even")
    if steps["jain"].isna().all():
        ax.text(
            0.5,
            0.5,
            "never two keys waiting all the time",
            transform=ax.transAxes,
            ha="center",
            va="center",
            color=SOFT,
        )


def _keys(ax: Axes, steps: pd.DataFrame) -> None:
    waiting, starved = steps["n_keys"].fillna(0), steps["starved_keys"].fillna(0)
    ax.fill_between(
        steps.index, waiting, color=REST, step="post", linewidth=0, label="waiting all the time"
    )
    ax.plot(steps.index, starved, color=BAD, drawstyle="steps-post", label="starved")
    ax.set_ylabel("keys")
    ax.set_ylim(0, 1.1 * max(1, waiting.max(), starved.max()))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _by_rank(service: pd.DataFrame, column: str, period: Period) -> pd.DataFrame:
    """Return a column for each rank with a colour and one for all others, and a row for each step,
    0 without data."""
    ranks = service["rank"].fillna(REST_RANK).astype(int)
    drawn = ranks.where(ranks <= len(COLOURS), REST_RANK)
    wide = service.assign(drawn=drawn).pivot_table(
        index="at", columns="drawn", values=column, aggfunc="sum"
    )
    ordered = wide[
        [
            *sorted(rank for rank in wide if rank != REST_RANK),
            *(rank for rank in wide if rank == REST_RANK),
        ]
    ]
    return on_grid(ordered, period).fillna(0)


def _label(keys: pd.DataFrame, rank: int) -> str:
    if rank != REST_RANK:
        return label(keys.loc[keys["rank"] == rank, "fairness_key"].iloc[0])
    others = keys[keys["rank"].isna() | (keys["rank"] > len(COLOURS))]
    return f"{others['keys'].sum():,} others"


def _colour(rank: int) -> str:
    return REST if rank == REST_RANK else COLOURS[rank - 1]


def _line(rank: int) -> str:
    return "-" if rank <= len(COLOURS) // 2 else "--"
