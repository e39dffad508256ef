"""Pictures of error budgets and failed runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pandas as pd
from matplotlib.patches import Patch

from fairlead.pipeline.definitions.slo import STEP_S
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.report.pictures.canvas import (
    BAD,
    COLOURS,
    GOOD,
    REST,
    WARN,
    Canvas,
    label,
    legend_right,
    on_grid,
    time_axis,
)

HOUR_S = 3600
STATES = {"ok": GOOD, "ticket": WARN, "page": BAD}
_OVERSPENT = -1.0
"""Least budget drawn; a lower one would flatten all others."""


def budgets(budgets: pd.DataFrame, objectives: list[str], period: Period, name: str) -> str:
    """Draw two pictures, one above the other: the part of the three-day error budget that each
    objective has left, and the state of each objective."""
    step_s = period.step_of(STEP_S)
    with Canvas(name, 11, 2.6 + 0.28 * len(objectives)) as canvas:
        left, states = canvas.figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [2.0, 0.28 * len(objectives)]}
        )
        lines = []
        for number, slo_id in enumerate(objectives):
            steps = on_grid(budgets[budgets["slo_id"] == slo_id].set_index("at"), period, step_s)
            remaining = steps["budget_left"].ffill().clip(lower=_OVERSPENT) * 100
            lines += left.plot(steps.index, remaining, color=COLOURS[number])
            for state, begin, end in _spells(steps["state"], step_s):
                bar: dict[str, Any] = {"width": end - begin, "left": begin, "color": STATES[state]}
                states.barh(number + 0.5, height=0.7, **bar)
        left.axhline(0, color=BAD, linewidth=0.8)
        left.set_ylabel("error budget left (%)")
        left.set_ylim(bottom=min(-5.0, left.get_ylim()[0]), top=105)
        legend_right(left, lines, [label(slo_id) for slo_id in objectives], "objective")
        states.set_ylim(len(objectives), 0)
        states.set_yticks(
            [number + 0.5 for number in range(len(objectives))],
            [label(each) for each in objectives],
        )
        states.grid(False)
        legend_right(states, [Patch(color=colour) for colour in STATES.values()], list(STATES))
        time_axis(left, period)
    return canvas.svg


def _spells(states: pd.Series, step_s: int) -> list[tuple[str, pd.Timestamp, pd.Timestamp]]:
    """Return consecutive steps of one state as (state, begin, end), without steps that have no
    state."""
    changes = (states.fillna("") != states.fillna("").shift()).cumsum()
    spells = [
        (spell.iloc[0], spell.index[0], spell.index[-1])
        for _, spell in states.dropna().groupby(changes)
    ]
    return [(state, first, last + timedelta(seconds=step_s)) for state, first, last in spells]


def failures(failures: pd.DataFrame, storms: pd.DataFrame, period: Period, name: str) -> str:
    """Draw failed runs in each step, stacked by class of error, with a triangle at the start of
    each storm."""
    step_s = period.step_of(HOUR_S)
    kinds = (
        failures.dropna(subset=["error_type"])
        .groupby("error_type")["n"]
        .sum()
        .sort_values(ascending=False)
    )
    wide = failures.assign(kind=failures["error_type"].fillna("")).pivot_table(
        index="at", columns="kind", values="n"
    )
    steps = on_grid(wide, period, step_s).fillna(0)
    per_hour = steps * HOUR_S / step_s
    colours = dict(zip(kinds.index, COLOURS, strict=False)) | {"": REST}
    with Canvas(name, 11, 2.9) as canvas:
        ax = canvas.figure.subplots()
        shown = [*kinds.index, *({""} & set(wide))]
        ax.stackplot(
            per_hour.index,
            [per_hour[kind] for kind in shown],
            colors=[colours[kind] for kind in shown],
            step="post",
            linewidth=0,
        )
        handles: list[Any] = [Patch(color=colours[kind]) for kind in shown]
        labels = [label(kind) if kind else "others" for kind in shown]
        greatest = per_hour.sum(axis=1).max()
        if len(storms):
            handles += ax.plot(
                storms["hour"], [greatest * 1.07] * len(storms), "v", color=BAD, markersize=6
            )
            labels.append("storm")
        ax.set_ylabel("failed runs an hour")
        ax.set_ylim(0, max(greatest * 1.14, 1))
        ax.grid(visible=False, axis="x")
        time_axis(ax, period)
        legend_right(ax, handles, labels, "error")
    return canvas.svg
