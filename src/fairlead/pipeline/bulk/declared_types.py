"""Declared types of columns of text, as in a CSV file: values are converted row by row, and a value
that does not fit is refused with its row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from fairlead.clock import to_micros

if TYPE_CHECKING:
    from fairlead.pipeline.bulk.checks import Problems

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

PLACE, PROBLEM = "_fairlead_place", "_fairlead_problem"
"""Columns that a reader of files adds: where a row comes from, such as `jobs.csv line 3`, and why
it cannot be read, as the name of the column, a line break and the reason."""
ORDER = "_fairlead_order"
"""Column that a reader of files adds for the option order_by."""


class DeclaredType(NamedTuple):
    """A type that a column of text may be declared as."""

    hint: str
    """Description of the values that fit."""
    read: Callable[[str], Any]
    """Conversion of one value. Raises LookupError, ValueError or OverflowError for a value that
    does not fit."""
    arrow: pa.DataType
    """Type of the converted column."""


def read_types(text: str) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return the (column, type) pairs of `a=int,b=decimal`, and the problems of the text."""
    pairs, wrong = {}, []
    for part in filter(None, map(str.strip, text.split(","))):
        column, equals, type_ = (piece.strip() for piece in part.rpartition("="))
        if not (column and equals) or type_ not in TYPES:
            wrong.append(f"types {part!r}: use COLUMN=TYPE with one of {', '.join(TYPES)}")
        elif column in pairs:
            wrong.append(f"types names column {column} twice")
        else:
            pairs[column] = type_
    return tuple(sorted(pairs.items())), wrong


def convert(column: str, values: pa.Array, type_: str, problems: Problems) -> pa.Array:
    """Return a column of text as values of its declared type, and refuse the rows whose value does
    not fit. An empty text is null, except as `text`."""
    if type_ == "text":
        return values
    declared = TYPES[type_]
    found: list[Any] = []
    for row, given in enumerate(values.cast(pa.binary()).to_pylist()):
        value = None
        if given:
            try:
                value = declared.read(given.decode())
            except (LookupError, ValueError, OverflowError):
                shown = given.decode(errors="replace")
                problems.note(
                    row, column, shown, f"{column} {shown[:80]!r}: use {declared.hint} ({type_})"
                )
        found.append(value)
    return pa.array(found, declared.arrow)


def _whole(text: str) -> int:
    value = int(_fit(_WHOLE, text))
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError
    return value


def _float(text: str) -> float:
    value = float(_fit(_FLOAT, text))
    if not math.isfinite(value):
        raise OverflowError
    return value


def _fit(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError
    return text


TYPES = {
    "text": DeclaredType("text", str, pa.string()),
    "int": DeclaredType("a whole number of at most 64 bits", _whole, pa.int64()),
    "decimal": DeclaredType(
        "a number such as 1.20", lambda text: _fit(_DECIMAL, text), pa.string()
    ),
    "float": DeclaredType("a finite number", _float, pa.float64()),
    "bool": DeclaredType(
        "true or false", lambda text: {"true": True, "false": False}[text.lower()], pa.bool_()
    ),
    "date": DeclaredType(
        "a date such as 2026-01-31",
        lambda text: date.fromisoformat(text).isoformat(),
        pa.string(),
    ),
    "timestamp": DeclaredType(
        "an instant with its time zone, such as 2026-01-31T12:00:00Z",
        lambda text: to_micros(datetime.fromisoformat(text)),
        pa.timestamp("us", "UTC"),
    ),
}
"""Types by name. A `decimal` and a `date` travel as JSON texts, as those of a single submit do."""
