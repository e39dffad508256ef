"""The sections of the page: pictures with the numbers behind them, or why there are none. What they
mean is in page.html."""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import Grid
from fairlead.pipeline.schema import Table


class Picture(NamedTuple):
    """`title` is also what is read out to those who do not see it."""

    title: str
    svg: Markup

    @classmethod
    def of(cls, title: str, svg: str) -> Picture:
        """A drawing of ours, in which all text is escaped already."""
        return cls(title, Markup(svg))  # noqa: S704


class Section(NamedTuple):
    """`nothing` says why there are no parts; empty: there are."""

    parts: list[Picture | Grid]
    nothing: str = ""


def without(data: ReportData, table: Table, else_: str = "") -> Section:
    """A section whose table has no rows, at all or in the period; `else_` says what that means when
    it has rows elsewhere."""
    if data.freshness.set_index("table")["rows"][table.name] == 0:
        job = "ingest" if table.name.startswith("bronze.") else "build"
        return Section(
            [],
            f"There is nothing in {table.name} yet: "
            f"`fairlead pipeline {job}` makes it. {else_}".strip(),
        )
    since, until = numbers.instant(data.period.since), numbers.instant(data.period.until)
    return Section([], f"{table.name} has nothing between {since} and {until}.")
