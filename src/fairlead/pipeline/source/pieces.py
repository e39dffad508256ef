"""Pieces of a batch read: the rows of one statement, and the scans of stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from fairlead.ports.history import Position

if TYPE_CHECKING:
    import pyarrow as pa


class Piece(NamedTuple):
    """One named statement of a store's file, with the values that choose its rows."""

    statement: str
    values: Mapping[str, str | int]


@dataclass(frozen=True)
class Part(InputPartition):
    """Pieces read by one task of Spark, possibly none."""

    pieces: tuple[Piece, ...]


class Scan(Protocol):
    """Scan of a store. Scans are pickled for executors: each call opens a connection and closes
    it."""

    def plan(self) -> list[Piece]:
        """Return pieces that together have every row of the table once."""

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece in batches."""


class FollowedScan(Scan, Protocol):
    """A store with a history of attempts."""

    @property
    def offset_fields(self) -> tuple[str, ...]:
        """Names of the fields of a position in a checkpoint."""

    def newest(self, after: Position, most: int | None) -> Position:
        """Return the position of the last attempt after `after`, at most `most` attempts on;
        `after` without any. No attempt will appear at or before that position."""

    def stretch(self, after: Position, through: Position) -> list[Piece]:
        """Return pieces that have every attempt after `after` up to `through` once."""


def spread(pieces: Sequence[Piece], parts: int | None) -> list[Part]:
    """Return at most `parts` parts with about equal numbers of pieces; at least one, because Spark
    needs it."""
    count = max(1, min(parts or len(pieces), len(pieces)))
    return [Part(tuple(pieces[n::count])) for n in range(count)]


def ranges(first: int, past: int, step: int) -> list[tuple[int, int]]:
    """Return ranges of [first, past) of at most `step`; at least one, possibly empty."""
    starts = list(range(first, past, step)) or [first]
    return list(zip(starts, [*starts[1:], max(past, first)], strict=True))
