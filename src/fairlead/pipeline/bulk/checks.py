"""Checks of whole columns against the bounds of `fairlead.declare.options`. A refused row gets the
error text that a submit of its task would raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.core.values import MOST_KEY_BYTES, MOST_NAME_BYTES
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT, PRIORITIES
from fairlead.pipeline.bulk.bounds import reason_against
from fairlead.pipeline.bulk.columns import TEXTS

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_SHOWN = 100  # characters
_MOST_REASON = 500  # characters


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

    def __init__(self, first: int, rows: int) -> None:
        """`first`: position of the batch's first row in its partition."""
        self._first = first
        self._rows = rows
        self._rejects: dict[int, Reject] = {}

    def note(self, row: int, column: str, value: Any, reason: str) -> None:
        """Refuse a row of the batch."""
        shown = value.decode(errors="replace") if isinstance(value, bytes) else value
        reject = Reject(
            self._first + row,
            column,
            printable(reason, _MOST_REASON),
            printable(repr(shown), _MOST_SHOWN),
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
        value = _value(values, row)
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
        out = pc.or_(pc.less(values, PRIORITIES.start), pc.greater_equal(values, PRIORITIES.stop))
    elif column == "weight":
        weights = values.cast(pa.float64())
        out = pc.invert(
            pc.and_(pc.greater_equal(weights, MIN_WEIGHT), pc.less_equal(weights, MAX_WEIGHT))
        )
    elif column in ("fairness_key", "ordering_key", "unique_key"):
        size = pc.binary_length(values)
        out = pc.or_(pc.greater(size, MOST_KEY_BYTES), pc.match_substring(values, "\x00"))
        if column != "fairness_key":
            out = pc.or_(out, pc.equal(size, 0))
    elif column == "context":
        out = values.is_valid()
    else:
        out = pa.repeat(False, len(values))
    return pc.fill_null(out, False)


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
