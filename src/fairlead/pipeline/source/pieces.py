"""Pieces of a batch read: what one statement reads, and what a store offers to be read by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from fairlead.ports.history import Position

if TYPE_CHECKING:
    import pyarrow as pa


class Piece(NamedTuple):
    """One named statement of a store's file, with the values that say which rows of the table it
    reads."""

    statement: str
    values: Mapping[str, str | int]


@dataclass(frozen=True)
class Part(InputPartition):
    """What one task of Spark reads, piece by piece. Without pieces: nothing."""

    pieces: tuple[Piece, ...]


class Scan(Protocol):
    """A store as it is read. It is pickled to executors: connections are opened for each call and
    closed after it."""

    def plan(self) -> list[Piece]:
        """Pieces that hold every row of the table once."""

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Its rows, a batch at a time."""


class FollowedScan(Scan, Protocol):
    """A store with a history of attempts."""

    @property
    def offset_fields(self) -> tuple[str, ...]:
        """Names under which a checkpoint keeps the fields of a place."""

    def newest(self, after: Position, most: int | None) -> Position:
        """The place of the last attempt behind `after`, or of the last of the first `most`; `after`
        when there is none. No attempt will ever appear at or before it."""

    def stretch(self, after: Position, through: Position) -> list[Piece]:
        """Pieces that hold every attempt behind `after` up to `through` once."""


def spread(pieces: Sequence[Piece], parts: int | None) -> list[Part]:
    """At most `parts` parts of about as many pieces each, else one for each; at least one, as Spark
    wants it."""
    count = max(1, min(parts or len(pieces), len(pieces)))
    return [Part(tuple(pieces[n::count])) for n in range(count)]


def ranges(first: int, past: int, step: int) -> list[tuple[int, int]]:
    """[first, past) in ranges of at most `step`; one, maybe empty, at least."""
    starts = list(range(first, past, step)) or [first]
    return list(zip(starts, [*starts[1:], max(past, first)], strict=True))
