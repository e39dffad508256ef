"""Sections of the page: pictures with the numbers behind them, or the reason why there are none.
page.html explains them."""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import Grid
from fairlead.pipeline.schema import Table


class Picture(NamedTuple):
    """A drawing with a title, which screen readers read out."""

    title: str
    svg: Markup

    @classmethod
    def of(cls, title: str, svg: str) -> Picture:
        """Return a picture from an SVG drawn here, in which all text is escaped already."""
        return cls(title, Markup(svg))  # noqa: S704


class Section(NamedTuple):
    """Parts of a section, or in `nothing` the reason why there are none."""

    parts: list[Picture | Grid]
    nothing: str = ""


def without(data: ReportData, table: Table, else_: str = "") -> Section:
    """Return a section whose table has no rows, in general or in the period. `else_`: a hint for a
    table without any rows."""
    if data.freshness.set_index("table")["rows"][table.name] == 0:
        job = "ingest" if table.name.startswith("bronze.") else "build"
        return Section(
            [],
            f"There is nothing in {table.name} yet: "
            f"`fairlead pipeline {job}` makes it. {else_}".strip(),
        )
    since, until = numbers.instant(data.period.since), numbers.instant(data.period.until)
    return Section([], f"{table.name} has nothing between {since} and {until}.")
