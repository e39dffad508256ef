"""Declared types of columns of text, as in a CSV file: values are converted row by row, and a value
that does not fit is refused with its row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.clock import to_micros

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.pipeline.bulk.checks import Problems

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class DeclaredType(NamedTuple):
    """A type that a column of text may be declared as."""

    hint: str
    """Description of the values that fit."""
    read: Callable[[str], Any]
    """Conversion of one value. Raises ValueError or OverflowError for a value that does not
    fit."""
    arrow: Callable[[Any], pa.DataType]
    """Return the type of the converted column, from the module pyarrow."""


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


def arrow_type(type_: str) -> pa.DataType:
    """Return the type that a column has after `convert`."""
    import pyarrow as pa

    return TYPES[type_].arrow(pa)


def convert(column: str, values: pa.Array, type_: str, problems: Problems) -> pa.Array:
    """Return a column of text as values of its declared type, and refuse the rows whose value does
    not fit. An empty text is null, except as `text`."""
    import pyarrow as pa

    if type_ == "text":
        return values
    declared = TYPES[type_]
    found: list[Any] = []
    for row, given in enumerate(values.cast(pa.binary()).to_pylist()):
        value = None
        if given:
            try:
                value = declared.read(given.decode())
            except (ValueError, OverflowError):
                shown = given.decode(errors="replace")
                problems.note(
                    row, column, shown, f"{column} {shown[:80]!r}: use {declared.hint} ({type_})"
                )
        found.append(value)
    return pa.array(found, declared.arrow(pa))


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


def _bool(text: str) -> bool:
    return {"true": True, "false": False}[_fit(re.compile("true|false"), text.lower())]


def _date(text: str) -> str:
    return date.fromisoformat(text).isoformat()


def _fit(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError
    return text


TYPES = {
    "text": DeclaredType("text", str, lambda pa: pa.string()),
    "int": DeclaredType("a whole number of at most 64 bits", _whole, lambda pa: pa.int64()),
    "decimal": DeclaredType(
        "a number such as 1.20", lambda text: _fit(_DECIMAL, text), lambda pa: pa.string()
    ),
    "float": DeclaredType("a finite number", _float, lambda pa: pa.float64()),
    "bool": DeclaredType("true or false", _bool, lambda pa: pa.bool_()),
    "date": DeclaredType("a date such as 2026-01-31", _date, lambda pa: pa.string()),
    "timestamp": DeclaredType(
        "an instant with its time zone, such as 2026-01-31T12:00:00Z",
        lambda text: to_micros(datetime.fromisoformat(text)),
        lambda pa: pa.timestamp("us", "UTC"),
    ),
}
"""Types by name. A `decimal` and a `date` travel as JSON texts, as those of a single submit do."""

PLACE, PROBLEM = "_fairlead_place", "_fairlead_problem"
"""Columns that a reader of files adds: where a row comes from, such as `jobs.csv line 3`, and why
it cannot be read, as the name of the column, a line break and the reason."""
ORDER = "_fairlead_order"
"""Column that a reader of files adds for the option order_by."""
