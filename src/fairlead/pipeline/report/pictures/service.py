"""Pictures of service by key: share against entitlement, lag, evenness."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fairlead.clock import MICROS
from fairlead.pipeline.report.numbers import unit_of
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.report.pictures.canvas import (
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

REST_RANK = 0
"""Rank, in pictures, of the keys without a colour of their own."""


def share(service: pd.DataFrame, keys: pd.DataFrame, period: Period, name: str) -> str:
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


def lag(service: pd.DataFrame, keys: pd.DataFrame, period: Period, name: str) -> str:
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
            unit, size = unit_of(max(greatest, MICROS), days=False)
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


def evenness(fairness: pd.DataFrame, queues: list[str], period: Period, name: str) -> str:
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
