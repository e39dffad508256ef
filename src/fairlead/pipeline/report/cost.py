"""Section about cost: the keys that make most of it, and its kinds."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.parts import HOUR_US
from fairlead.pipeline.report.canvas import BAD, COLOURS, REST, drawing, label
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.numbers import amount, percent
from fairlead.pipeline.report.section import Part, Section, missing_rows


def cost(data: ReportData) -> Section:
    """Return the keys that make up the bill."""
    if not len(data.cost):
        return missing_rows(data, COST)
    parts = parts_of_whole(data.cost)
    rows = data.cost.assign(part=parts, so_far=parts.cumsum())
    svg = _draw_pareto(rows)
    return [Part("cost", "All queues together", rows, title="Cost by key", svg=svg)]


def _draw_pareto(cost: pd.DataFrame) -> Markup:
    """Draw a bar for each key, most expensive first and all others last: useful, wasted and idle
    worker time. Texts show the amount (with a bill only), the part of the whole, and the cumulated
    parts."""
    billed = is_billed(cost)
    pieces = {
        "useful": (cost["busy_us"] - cost["wasted_us"], COLOURS[0]),
        "wasted (failed runs)": (cost["wasted_us"], BAD),
        "idle, allocated": (cost["idle_allocated_us"], REST),
    }
    with drawing("cost", 0.9 + 0.27 * len(cost)) as canvas:
        ax = canvas.figure.subplots()
        left = 0 * cost["busy_us"]
        for piece, (us, colour) in pieces.items():
            bar = {"left": left / HOUR_US, "color": colour, "label": piece, "height": 0.7}
            ax.barh(range(len(cost)), us / HOUR_US, **bar)
            left = left + us
        for number, row in enumerate(cost.to_dict("records")):
            paid = f"{amount(row['amount'])} · " if billed else ""
            text = f"{paid}{percent(row['part'])}, together {percent(row['so_far'])}"
            end, beside = (left.iloc[number] / HOUR_US, number), "offset points"
            ax.annotate(text, end, (5, 0), textcoords=beside, va="center", fontsize=8)
        ax.set_ylim(len(cost) - 0.4, -0.6)
        ax.set_xlim(0, 1.25 * max(left.max() / HOUR_US, 1e-6))
        others = cost["fairness_key"].isna()
        named = zip(cost["fairness_key"], others, cost["keys"], strict=True)
        names = [f"{keys:,} others" if is_rest else label(key) for key, is_rest, keys in named]
        ax.set_yticks(range(len(cost)), names)
        ax.set_xlabel("worker-hours")
        ax.grid(visible=False, axis="y")
        canvas.figure.legend(loc="outside upper right", ncols=len(pieces))
    return canvas.svg


def is_billed(cost: pd.DataFrame) -> bool:
    """Return whether there was a bill or a price to divide."""
    return bool(cost["amount"].sum() > 0)


def parts_of_whole(cost: pd.DataFrame) -> pd.Series:
    """Return the part of each row, 0 to 1: of the bill, or of the worker time without a bill."""
    values = cost["amount" if is_billed(cost) else "busy_us"].astype(float)
    return values / max(values.sum(), 1e-9)
