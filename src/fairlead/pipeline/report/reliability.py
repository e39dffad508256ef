"""Sections about objectives and failed runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pandas as pd
from markupsafe import Markup
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
    drawing,
    label,
    legend_right,
    on_grid,
    time_axis,
)
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.period import HOUR_S
from fairlead.pipeline.report.section import Part, Section, missing_rows

_STATES = {"ok": GOOD, "ticket": WARN, "page": BAD}
_OVERSPENT = -1.0
"""Least budget drawn; a lower one would flatten all others."""


def objectives(data: ReportData) -> Section:
    """Return the section with the error budget and the alert state of each objective."""
    rows = data.objectives
    if not len(rows):
        return missing_rows(
            data, SLO, "Define objectives as [[slo]] tables in the settings file of the build."
        )
    rows = rows.assign(
        good_part=rows["good"] / (rows["good"] + rows["bad"]),
        page_us=rows["page_s"] * MICROS,
        ticket_us=rows["ticket_s"] * MICROS,
    )
    caption = (
        "State and budget at the end of the period, least budget first; the counts and the times"
        " cover the whole period"
    )
    title = "Error budgets and states"
    return [Part("objectives", caption, rows, title=title, svg=_draw_budgets(data))]


def failures(data: ReportData) -> Section:
    """Return the section with the failed runs, the errors and the failure storms."""
    if not len(data.failures):
        none = "No run failed in this period."
        return none if len(data.queues) else missing_rows(data, FAILURES)
    svg, caption = _draw_failures(data), "Errors, most frequent first"
    parts = [Part("failures", caption, data.failures, title="Failed runs", svg=svg)]
    if len(data.storms):
        parts.append(Part("storms", "Failure storms, latest first", data.storms))
    return parts


def _draw_budgets(data: ReportData) -> Markup:
    """Draw two pictures, one above the other: the part of the three-day error budget that each
    objective has left, and the state of each objective."""
    drawn, period = list(data.objectives["slo_id"][: len(COLOURS)]), data.period
    step_s, labels = period.step_of(STEP_S), [label(slo_id) for slo_id in drawn]
    with drawing("objectives", 2.6 + 0.28 * len(drawn)) as canvas:
        left, states = canvas.figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [2.0, 0.28 * len(drawn)]}
        )
        lines = []
        for number, slo_id in enumerate(drawn):
            budget = data.budgets[data.budgets["slo_id"] == slo_id].set_index("at")
            steps = on_grid(budget, period, step_s)
            remaining = steps["budget_left"].ffill().clip(lower=_OVERSPENT) * 100
            lines += left.plot(steps.index, remaining, color=COLOURS[number])
            for state, begin, end in _spells(steps["state"], step_s):
                bar: dict[str, Any] = {"width": end - begin, "left": begin, "color": _STATES[state]}
                states.barh(number + 0.5, height=0.7, **bar)
        left.axhline(0, color=BAD, linewidth=0.8)
        left.set_ylabel("error budget left (%)")
        left.set_ylim(bottom=min(-5.0, left.get_ylim()[0]), top=105)
        legend_right(left, lines, labels, "objective")
        states.set_ylim(len(drawn), 0)
        states.set_yticks([number + 0.5 for number in range(len(drawn))], labels)
        states.grid(False)
        legend_right(states, [Patch(color=colour) for colour in _STATES.values()], list(_STATES))
        time_axis(left, period)
    return canvas.svg


def _spells(states: pd.Series, step_s: int) -> list[tuple[str, pd.Timestamp, pd.Timestamp]]:
    """Return consecutive steps of one state as (state, begin, end), without steps that have no
    state."""
    changes = (states.fillna("") != states.fillna("").shift()).cumsum()
    return [
        (spell.iloc[0], spell.index[0], spell.index[-1] + timedelta(seconds=step_s))
        for _, spell in states.dropna().groupby(changes)
    ]


def _draw_failures(data: ReportData) -> Markup:
    """Draw failed runs in each step, stacked by class of error, with a triangle at the start of
    each storm."""
    period, step_s = data.period, data.period.step_of(HOUR_S)
    failed = data.failures_over_time.assign(kind=data.failures_over_time["error_type"].fillna(""))
    counts = failed.groupby("kind")["n"].sum().sort_values(ascending=False)
    # All other types are the last one.
    kinds = sorted(counts.index, key=lambda kind: not kind)
    colours = dict(zip(filter(None, kinds), COLOURS, strict=False)) | {"": REST}
    wide = failed.pivot_table(index="at", columns="kind", values="n")
    per_hour = on_grid(wide, period, step_s).fillna(0) * HOUR_S / step_s
    with drawing("failures", 2.9) as canvas:
        ax = canvas.figure.subplots()
        stacked = [per_hour[kind] for kind in kinds]
        colors = [colours[kind] for kind in kinds]
        ax.stackplot(per_hour.index, stacked, colors=colors, step="post", linewidth=0)
        handles: list[Any] = [Patch(color=colour) for colour in colors]
        labels = [label(kind) if kind else "others" for kind in kinds]
        greatest = per_hour.sum(axis=1).max()
        if len(data.storms):
            heights = [greatest * 1.07] * len(data.storms)
            handles += ax.plot(data.storms["hour"], heights, "v", color=BAD, markersize=6)
            labels.append("storm")
        ax.set_ylabel("failed runs an hour")
        ax.set_ylim(0, max(greatest * 1.14, 1))
        ax.grid(visible=False, axis="x")
        time_axis(ax, period)
        legend_right(ax, handles, labels, "error")
    return canvas.svg
