"""The section about cost."""

from __future__ import annotations

from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.facts.cost import parts_of_whole
from fairlead.pipeline.report.grids import GridColumn, grid
from fairlead.pipeline.report.pictures.cost import pareto
from fairlead.pipeline.report.sections import Picture, Section, missing_rows

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
            Picture.of("Cost by key", pareto(data.cost, "cost")),
            grid("All queues together", rows, _COST),
        ]
    )
