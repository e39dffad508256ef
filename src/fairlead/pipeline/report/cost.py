"""Section about cost: the keys that make most of it, and its kinds."""

from __future__ import annotations

import pandas as pd

from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.parts import HOUR_US
from fairlead.pipeline.report.canvas import BAD, COLOURS, REST, Canvas, label
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import GridColumn, grid
from fairlead.pipeline.report.numbers import amount, percent
from fairlead.pipeline.report.section import Picture, Section, missing_rows

_COST = (
    GridColumn("key", "fairness_key"),
    GridColumn("worker time", "busy_us", "work"),
    GridColumn("wasted", "wasted_us", "work"),
    GridColumn("idle, allocated", "idle_allocated_us", "work"),
    GridColumn("amount", "amount", "amount"),
    GridColumn("part", "part", "percent"),
    GridColumn("cumulated", "so_far", "percent"),
)


def cost(data: ReportData) -> Section:
    """Return the keys that make up the bill."""
    if not len(data.cost):
        return missing_rows(data, COST)
    parts = parts_of_whole(data.cost)
    rows = data.cost.assign(part=parts, so_far=parts.cumsum())
    return Section(
        [
            Picture.of("Cost by key", _draw_pareto(data.cost, "cost")),
            grid("All queues together", rows, _COST),
        ]
    )


def _draw_pareto(cost: pd.DataFrame, name: str) -> str:
    """Return a bar for each key, most expensive first and all others last: useful, wasted and idle
    worker time. Texts show the amount (with a bill only), the part of the whole, and the cumulated
    parts."""
    billed = is_billed(cost)
    parts = parts_of_whole(cost)
    pieces = {
        "useful": (cost["busy_us"] - cost["wasted_us"], COLOURS[0]),
        "wasted (failed runs)": (cost["wasted_us"], BAD),
        "idle, allocated": (cost["idle_allocated_us"], REST),
    }
    with Canvas(name, 11, 0.9 + 0.27 * len(cost)) as canvas:
        ax = canvas.figure.subplots()
        left = 0 * cost["busy_us"]
        for piece, (us, colour) in pieces.items():
            ax.barh(
                range(len(cost)),
                us / HOUR_US,
                left=left / HOUR_US,
                color=colour,
                label=piece,
                height=0.7,
            )
            left = left + us
        for row, (part, so_far) in enumerate(zip(parts, parts.cumsum(), strict=True)):
            paid = f"{amount(cost['amount'].iloc[row])} · " if billed else ""
            ax.annotate(
                f"{paid}{percent(part)}, together {percent(so_far)}",
                (left.iloc[row] / HOUR_US, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        ax.set_ylim(len(cost) - 0.4, -0.6)
        ax.set_xlim(0, 1.25 * max(left.max() / HOUR_US, 1e-6))
        ax.set_yticks(range(len(cost)), _key_names(cost))
        ax.set_xlabel("worker-hours")
        ax.grid(visible=False, axis="y")
        canvas.figure.legend(loc="outside upper right", ncols=len(pieces))
    return canvas.svg


def _key_names(cost: pd.DataFrame) -> list[str]:
    """Return the labels of the bars."""
    pairs = zip(cost["fairness_key"], cost["fairness_key"].isna(), cost["keys"], strict=True)
    return [f"{keys:,} others" if is_rest else label(key) for key, is_rest, keys in pairs]


def is_billed(cost: pd.DataFrame) -> bool:
    """Return whether there was a bill or a price to divide."""
    return bool(cost["amount"].sum() > 0)


def parts_of_whole(cost: pd.DataFrame) -> pd.Series:
    """Return the part of each row, 0 to 1: of the bill, or of the worker time without a bill."""
    values = cost["amount" if is_billed(cost) else "busy_us"].astype(float)
    return values / max(values.sum(), 1e-9)
