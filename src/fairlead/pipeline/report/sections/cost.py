"""The section about cost."""

from __future__ import annotations

from fairlead.pipeline.gold.cost import COST
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.facts.cost import parts_of_whole
from fairlead.pipeline.report.grids import Shown, grid
from fairlead.pipeline.report.pictures.cost import pareto
from fairlead.pipeline.report.sections import Picture, Section, without

_COST = (
    Shown("key", "fairness_key"),
    Shown("worker time", "busy_us", "work"),
    Shown("of it wasted", "wasted_us", "work"),
    Shown("idle, allocated", "idle_allocated_us", "work"),
    Shown("amount", "amount", "amount"),
    Shown("part", "part", "percent"),
    Shown("down to here", "so_far", "percent"),
)


def cost(data: ReportData) -> Section:
    """Which keys the bill comes from."""
    if not len(data.cost):
        return without(data, COST)
    parts = parts_of_whole(data.cost)
    rows = data.cost.assign(part=parts, so_far=parts.cumsum())
    return Section(
        [
            Picture.of("Cost by key", pareto(data.cost, "cost")),
            grid("All queues together", rows, _COST),
        ]
    )
