"""Tables on the page: the chosen columns of a DataFrame, as rows of text with exact values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fairlead.pipeline.report import numbers

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


class GridColumn(NamedTuple):
    """A column on the page: its heading, the frame's column, and the format of its values, a name
    in `_FORMATS`."""

    heading: str
    column: str
    kind: str = "name"


class Cell(NamedTuple):
    """A cell of a table. `value` is the exact number, empty for other cells."""

    text: str
    kind: str
    value: str = ""


class Grid(NamedTuple):
    """A table of the page."""

    caption: str
    headings: list[tuple[str, str]]
    """Text and kind of each heading."""
    rows: list[list[Cell]]
    left_out: int = 0
    """Number of rows of the frame that are not shown."""


def grid(
    caption: str, frame: pd.DataFrame, columns: Sequence[GridColumn], most: int | None = None
) -> Grid:
    """Return the first `most` rows of the frame (all by default). A null key stands for the other
    keys; the column `keys` counts them."""
    shown = frame if most is None else frame.head(most)
    rows = [[_cell(row, column) for column in columns] for row in shown.to_dict("records")]
    return Grid(
        caption, [(c.heading, _align(c.kind)) for c in columns], rows, len(frame) - len(shown)
    )


def _cell(row: dict[Any, Any], column: GridColumn) -> Cell:
    value = row[column.column]
    if pd.isna(value):
        if column.column == "fairness_key" and "keys" in row:
            return Cell(f"{row['keys']:,} others", "rest")
        return Cell(NONE, _align(column.kind))
    text = _FORMATS[column.kind](value)
    if column.kind in NUMBERS:
        return Cell(text, "number", f"{value}")
    return Cell(text, column.kind)


def _align(kind: str) -> str:
    return "number" if kind in NUMBERS else kind
