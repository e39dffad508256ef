"""Sections about objectives and failed runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pandas as pd
from matplotlib.patches import Patch

from fairlead.clock import MICROS
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.slo import SLO, STEP_S
from fairlead.pipeline.report.canvas import (
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
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import Grid, GridColumn, grid
from fairlead.pipeline.report.period import HOUR_S, Period
from fairlead.pipeline.report.section import Picture, Section, missing_rows

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
_STATES = {"ok": GOOD, "ticket": WARN, "page": BAD}
_OVERSPENT = -1.0
"""Least budget drawn; a lower one would flatten all others."""


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
    svg = _draw_budgets(data.budgets, drawn, data.period, "objectives")
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
    svg = _draw_failures(data.failures_over_time, data.storms, data.period, "failures")
    parts: list[Picture | Grid] = [
        Picture.of("Failed runs", svg),
        grid("Errors, most frequent first", data.failures, _FAILURES),
    ]
    if len(data.storms):
        parts.append(grid("Failure storms, latest first", data.storms, _STORMS))
    return Section(parts)


def _draw_budgets(budgets: pd.DataFrame, objectives: list[str], period: Period, name: str) -> str:
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
                bar: dict[str, Any] = {"width": end - begin, "left": begin, "color": _STATES[state]}
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
        legend_right(states, [Patch(color=colour) for colour in _STATES.values()], list(_STATES))
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


def _draw_failures(failures: pd.DataFrame, storms: pd.DataFrame, period: Period, name: str) -> str:
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
