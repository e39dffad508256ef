"""Sections of the page: pictures, and tables with the numbers behind them. page.html lists the
columns of the tables, and explains the sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.schema import Table

NONE = "-"
LONGEST_TEXT = 90

_FORMATS: dict[str, Callable[[Any], str]] = {
    "amount": numbers.amount,
    "count": numbers.count,
    "duration": numbers.duration,
    "percent": numbers.percent,
    "ratio": numbers.ratio,
    "work": numbers.work,
    "instant": numbers.instant,
    "name": numbers.shortened,
    "state": str,
    "text": lambda text: numbers.shortened(" ".join(text.split()), LONGEST_TEXT),
}
NUMBERS = ("amount", "count", "duration", "percent", "ratio", "work")


class Part(NamedTuple):
    """A table of a section, below a picture if it has one."""

    columns: str
    """Name of the list of the columns in page.html."""
    caption: str
    rows: pd.DataFrame
    most: int | None = None
    """Maximum number of rows to show; None for all."""
    title: str = ""
    """Title of the picture, also for screen readers."""
    svg: Markup = Markup()


Section = list[Part] | str
"""Parts of a section, or the reason why it has none."""


class Cell(NamedTuple):
    """A cell of a table. `value` is the exact number, empty for other cells."""

    text: str
    kind: str
    value: str = ""


def cells(part: Part, columns: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """Return the rows of a table that are shown. A column is its heading, the column of the frame,
    and the format of its values (default: a name)."""
    shown = part.rows if part.most is None else part.rows.head(part.most)
    return [
        [_cell(row, column, *(kind or ["name"])) for _, column, *kind in columns]
        for row in shown.to_dict("records")
    ]


def _cell(row: dict[Any, Any], column: str, kind: str) -> Cell:
    """Return a cell. A null key stands for the other keys; the column `keys` counts them."""
    value = row[column]
    if pd.isna(value):
        if column == "fairness_key" and "keys" in row:
            return Cell(f"{row['keys']:,} others", "rest")
        return Cell(NONE, class_of(kind))
    return Cell(_FORMATS[kind](value), class_of(kind), f"{value}" if kind in NUMBERS else "")


def class_of(kind: str = "name") -> str:
    """Return the class of the cells with values of this format."""
    return "number" if kind in NUMBERS else kind


def missing_rows(data: ReportData, table: Table, hint: str = "") -> str:
    """Return why a section is empty: its table has no rows at all, or none in the period. `hint`:
    further advice for a table without any rows."""
    if data.freshness.set_index("table")["rows"][table.name] == 0:
        return f"{table.name} has no rows yet; run `fairlead pipeline build`. {hint}".strip()
    since, until = numbers.instant(data.period.since), numbers.instant(data.period.until)
    return f"{table.name} has no rows between {since} and {until}."
