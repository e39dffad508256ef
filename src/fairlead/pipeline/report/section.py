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
    """Drawing with a title for screen readers."""

    title: str
    svg: Markup

    @classmethod
    def of(cls, title: str, svg: str) -> Picture:
        """Return a picture from an SVG made by this package, whose texts are already escaped."""
        return cls(title, Markup(svg))  # noqa: S704


class Section(NamedTuple):
    """Section of the report: its parts, or in `nothing` the reason why it has none."""

    parts: list[Picture | Grid]
    nothing: str = ""


def missing_rows(data: ReportData, table: Table, hint: str = "") -> Section:
    """Return a section that says why it is empty: its table has no rows at all, or none in the
    period. `hint`: further advice for a table without any rows."""
    if data.freshness.set_index("table")["rows"][table.name] == 0:
        job = "ingest" if table.name.startswith("bronze.") else "build"
        return Section(
            [],
            f"{table.name} has no rows yet; run `fairlead pipeline {job}`. {hint}".strip(),
        )
    since, until = numbers.instant(data.period.since), numbers.instant(data.period.until)
    return Section([], f"{table.name} has no rows between {since} and {until}.")
