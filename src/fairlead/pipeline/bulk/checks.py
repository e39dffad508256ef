"""Checks of whole columns against the bounds of `fairlead.declare.options`. A refused row gets the
error text that a submit of its task would raise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.clock import MICROS, to_micros
from fairlead.core.values import MOST_KEY_BYTES, MOST_NAME_BYTES, brief
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT, PRIORITIES
from fairlead.pipeline.bulk.columns import TEXTS
from fairlead.pipeline.bulk.options import reason_against

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_SHOWN = 100  # characters
_MOST_REASON = 500  # characters
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FIRST_SECOND = to_micros(datetime.min.replace(tzinfo=UTC)) // MICROS
_END_SECOND = to_micros(datetime.max.replace(tzinfo=UTC)) // MICROS + 1


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

    def __init__(self, first: int, rows: int, places: Sequence[str] | None = None) -> None:
        """`first`: position of the batch's first row in its partition. `places`: where each row
        comes from, such as `jobs.csv line 3`."""
        self._first = first
        self._places = places
        self._rows = rows
        self._rejects: dict[int, Reject] = {}

    def note(self, row: int, column: str, value: Any, reason: str) -> None:
        """Refuse a row of the batch."""
        shown = value.decode(errors="replace") if isinstance(value, bytes) else value
        if self._places is not None:
            reason = f"{self._places[row]}: {reason}"
        reject = Reject(
            self._first + row,
            column,
            printable(reason, _MOST_REASON),
            printable(brief(shown), _MOST_SHOWN),
        )
        self._rejects.setdefault(row, reject)

    @property
    def rejects(self) -> list[Reject]:
        """Refused rows, in order."""
        return [self._rejects[row] for row in sorted(self._rejects)]

    def good(self) -> pa.Array:
        """Return a mask of the accepted rows."""
        import numpy as np
        import pyarrow as pa

        good = np.ones(self._rows, dtype=bool)
        good[list(self._rejects)] = False
        return pa.array(good)


def printable(text: str, most: int) -> str:
    """Return the first characters of a value, in a form that any database accepts."""
    return text[:most].encode("utf-8", "replace").decode().replace("\x00", "\\x00")


def check(column: str, values: pa.Array, problems: Problems) -> None:
    """Refuse the rows whose value of this known column is out of bounds."""
    import pyarrow.compute as pc

    if column in TEXTS:
        values = _unicode(column, values, problems)
    for row in pc.indices_nonzero(pc.fill_null(_suspects(column, values), True)).to_pylist():
        try:
            value = _value(values, row)
        except (ValueError, OverflowError) as error:
            problems.note(row, column, *_unreadable(column, values, row, error))
            continue
        if (reason := reason_against(column, value)) is not None:
            problems.note(row, column, value, reason)


def _suspects(column: str, values: pa.Array) -> pa.Array:
    """Return a mask of the rows to check one by one; null also means that the row is checked."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column in ("name", "queue"):
        size = pc.binary_length(values)
        blank = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(values)), 0)
        return pc.or_(
            pc.or_(pc.greater(size, MOST_NAME_BYTES), blank), pc.match_substring(values, "\x00")
        )
    if column == "priority":
        numbers = values.cast(pa.float64(), safe=False)
        out = pc.or_(pc.less(numbers, PRIORITIES.start), pc.greater_equal(numbers, PRIORITIES.stop))
    elif column == "weight":
        # Unsafe: a number that a float cannot hold exactly is out of bounds anyway.
        weights = values.cast(pa.float64(), safe=False)
        out = pc.invert(
            pc.and_(pc.greater_equal(weights, MIN_WEIGHT), pc.less_equal(weights, MAX_WEIGHT))
        )
    elif column in ("fairness_key", "ordering_key", "unique_key"):
        size = pc.binary_length(values)
        out = pc.or_(pc.greater(size, MOST_KEY_BYTES), pc.match_substring(values, "\x00"))
        if column != "fairness_key":
            out = pc.or_(out, pc.equal(size, 0))
    elif column == "run_at":
        # A 64-bit count of nanoseconds holds only years in which a datetime can be.
        per_second = _PER_SECOND[values.type.unit]
        instants = values.cast(pa.int64())
        if values.type.unit == "ns":
            return pa.repeat(False, len(values))
        out = pc.or_(
            pc.less(instants, _FIRST_SECOND * per_second),
            pc.greater_equal(instants, _END_SECOND * per_second),
        )
    elif column == "context":
        out = values.is_valid()
    else:
        out = pa.repeat(False, len(values))
    return pc.fill_null(out, False)


def _unreadable(column: str, values: pa.Array, row: int, error: Exception) -> tuple[Any, str]:
    """Return a value that Python cannot hold, as text, and the reason against it."""
    if column == "run_at":
        value = f"{values[row].value} {values.type.unit} since 1970"
        return value, f"run_at {value}: use an instant in the years 1 to 9999"
    return str(values.type), f"{column}: cannot be read ({error})"


def _value(values: pa.Array, row: int) -> Any:
    import pyarrow as pa

    value = values[row].as_py()
    return dict(value) if pa.types.is_map(values.type) and value is not None else value


def _unicode(column: str, texts: pa.Array, problems: Problems) -> pa.Array:
    """Return the texts; refuse invalid ones and replace them by "?"."""
    import pyarrow as pa

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
