"""Checks of whole columns against the bounds of `fairlead.declare.options`. A refused row gets the
error text that a submit of its task would raise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import MICROS, to_micros
from fairlead.core.values import MOST_KEY_BYTES, MOST_NAME_BYTES, brief
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT, PRIORITIES
from fairlead.pipeline.bulk.columns import TEXTS
from fairlead.pipeline.bulk.options import reason_against

_MOST_SHOWN = 100  # characters
_MOST_REASON = 500  # characters
_FIRST_SECOND = to_micros(datetime.min.replace(tzinfo=UTC)) // MICROS
_LAST_SECOND = to_micros(datetime.max.replace(tzinfo=UTC)) // MICROS


class Reject(NamedTuple):
    """A refused row: its position in its partition, the wrong column, the reason, and the start of
    its value."""

    ordinal: int
    column: str
    reason: str
    value: str

    def __str__(self) -> str:
        return f"row {self.ordinal}: {self.reason} (column {self.column}: {self.value})"


class Problems:
    """Refused rows of one batch, each with its first problem."""

    def __init__(self, first: int, places: Sequence[str] | None) -> None:
        """`first`: position of the batch's first row in its partition. `places`: where each row
        comes from, such as `jobs.csv line 3`."""
        self._first = first
        self._places = places
        self._rejects: dict[int, Reject] = {}

    def note(self, row: int, column: str, value: Any, reason: str) -> None:
        """Refuse a row of the batch."""
        shown = value.decode(errors="replace") if isinstance(value, bytes) else value
        if self._places is not None:
            reason = f"{self._places[row]}: {reason}"
        texts = _printable(reason[:_MOST_REASON]), _printable(brief(shown)[:_MOST_SHOWN])
        self._rejects.setdefault(row, Reject(self._first + row, column, *texts))

    @property
    def rejects(self) -> list[Reject]:
        """Refused rows, in order."""
        return [self._rejects[row] for row in self.rows]

    @property
    def rows(self) -> list[int]:
        """Positions of the refused rows in the batch."""
        return sorted(self._rejects)


def _printable(text: str) -> str:
    """Return the text in a form that any database accepts."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\\x00")


def check(column: str, values: pa.Array, problems: Problems) -> None:
    """Refuse the rows whose value of this known column is out of bounds."""
    if column in TEXTS:
        values = _unicode(column, values, problems)
    elif column == "run_at":
        # In the time zone of the column, the first and the last day may have no date of Python.
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    for row in pc.indices_nonzero(_suspects(column, values)).to_pylist():
        reason: str | None
        try:
            value = values[row].as_py()
        except (ValueError, OverflowError) as error:  # a value that Python cannot hold
            value, reason = str(values.type), f"{column}: cannot be read ({error})"
            if column == "run_at":
                value = f"{values[row].value} {values.type.unit} since 1970"
                reason = f"run_at {value}: use an instant in the years 1 to 9999"
        else:
            value = dict(value) if column == "context" else value
            reason = reason_against(column, value)
        if reason is not None:
            problems.note(row, column, value, reason)


def _suspects(column: str, values: pa.Array) -> pa.Array:
    """Return a mask of the rows to check one by one."""
    low: float
    high: float
    match column:
        case "args" | "payload":
            return pa.repeat(False, len(values))
        case "context":
            return values.is_valid()
        case "name" | "queue":
            size, blank = pc.binary_length(values), pc.utf8_trim_whitespace(values)
            out = pc.or_(pc.greater(size, MOST_NAME_BYTES), pc.equal(pc.binary_length(blank), 0))
            return pc.or_(out, pc.match_substring(values, "\x00")).fill_null(True)
        case "fairness_key" | "ordering_key" | "unique_key":
            size, least = pc.binary_length(values), 0 if column == "fairness_key" else 1
            out = pc.or_(pc.greater(size, MOST_KEY_BYTES), pc.less(size, least))
            return pc.or_(out, pc.match_substring(values, "\x00")).fill_null(False)
        case "run_at":
            # The cast rounds towards zero, so the whole first second is checked.
            low, high = _FIRST_SECOND + 1, _LAST_SECOND
            values = values.cast(pa.timestamp("s", values.type.tz), safe=False).cast(pa.int64())
        case _:
            low, high = MIN_WEIGHT, MAX_WEIGHT
            if column == "priority":
                low, high = PRIORITIES[0], PRIORITIES[-1]
            # Unsafe: a number that a float cannot hold exactly is out of bounds anyway.
            values = values.cast(pa.float64(), safe=False)
    fine = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return pc.invert(fine).fill_null(False)


def _unicode(column: str, texts: pa.Array, problems: Problems) -> pa.Array:
    """Return the texts; refuse invalid ones and replace them by "?"."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        values = texts.cast(pa.binary()).to_pylist()
        for row, value in enumerate(values):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                problems.note(
                    row, column, value, f"{column} {value!r}: not valid Unicode ({error.reason})"
                )
                values[row] = b"?"
        return pa.array(values, pa.binary()).cast(pa.string())
    return texts
