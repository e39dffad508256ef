"""Scans of stores: pieces that Spark tasks share and read in parallel, as streams of Arrow
batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from fairlead.clock import to_micros
from fairlead.core.payload import unpack
from fairlead.model.history import Position
from fairlead.pipeline.source.options import ReadOptions
from fairlead.ports.statements import Row


class Piece(NamedTuple):
    """Name of a statement in the SQL file of a store, and the values of its parameters."""

    statement: str
    values: Mapping[str, str | int]


class Scan(ABC):
    """Scan of a SQL store. Scans are pickled for executors: each call opens a connection and closes
    it."""

    offset_fields: ClassVar[tuple[str, ...]]
    """Names in a checkpoint of the fields of a position, of which the last is `seq`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._schema = options.chosen().arrow()

    @abstractmethod
    def plan(self) -> list[Piece]:
        """Return pieces that together contain each row of the table exactly once."""

    @abstractmethod
    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece in batches."""

    def newest(self, after: Position, most: int | None) -> Position:
        """Return the position of the last attempt among the first `most` attempts after `after`, or
        among all of them; `after` if there is no attempt. No attempt will appear later at or before
        the returned position."""
        if most is None:
            found = self._ask("newest", *after)
        else:
            found = self._ask("newest_of_next", *after, most)
        return Position(*found[0]) if found else after

    @abstractmethod
    def window(self, after: Position, through: Position) -> list[Piece]:
        """Return pieces that together contain each attempt after `after` and up to `through`
        exactly once."""

    @abstractmethod
    def _ask(self, statement: str, *params: object) -> Sequence[Row]:
        """Return the rows of a statement of the SQL file."""

    def _columns(self) -> list[str]:
        """Return the names to read from the store: a payload comes with its format."""
        columns = self._options.names
        return [*columns, "payload_format"] if "payload" in columns else columns

    def _values(self, piece: Piece) -> dict[str, Any]:
        """Return the parameters of the statement of a piece."""
        options = self._options
        period = {"since": options.since, "until": options.until}
        bounds = {name: None if at is None else to_micros(at) for name, at in period.items()}
        return {"queue": options.queue, **bounds, **piece.values}

    def _batch(self, arrays: Sequence[Any]) -> pa.RecordBatch:
        """Return the values of `_columns`, each a sequence or an Arrow array, with the types of the
        table; instants are microseconds."""
        named = dict(zip(self._columns(), arrays, strict=True))
        if "payload" in named:
            payloads, formats = (
                values.to_pylist() if isinstance(values, pa.Array) else values
                for values in (named["payload"], named["payload_format"])
            )
            named["payload"] = [
                unpack(*each).decode() for each in zip(payloads, formats, strict=True)
            ]
        return pa.RecordBatch.from_pydict(named, schema=self._schema)


def ranges(first: int, past: int, step: int) -> list[tuple[int, int]]:
    """Split [first, past) into ranges of at most `step` numbers. Return at least one range, which
    may be empty."""
    starts = list(range(first, past, step)) or [first]
    return list(zip(starts, [*starts[1:], max(past, first)], strict=True))
