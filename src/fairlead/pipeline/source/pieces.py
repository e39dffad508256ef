"""Pieces, into which a scan divides the reading of a store so that Spark tasks can share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fairlead.ports.history import Position


class Piece(NamedTuple):
    """Name of a statement in the SQL file of a store, and the values of its parameters."""

    statement: str
    values: Mapping[str, str | int]


@dataclass(frozen=True)
class ReadPart(InputPartition):
    """Pieces that one Spark task reads; the part may be empty."""

    pieces: tuple[Piece, ...]


class Scan(Protocol):
    """Scan of a store. Scans are pickled for executors: each call opens a connection and closes
    it."""

    def plan(self) -> list[Piece]:
        """Return pieces that together contain each row of the table exactly once."""

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece in batches."""


class FollowedScan(Scan, Protocol):
    """Scan of a store that a stream can follow, because the store has a history of attempts."""

    @property
    def offset_fields(self) -> tuple[str, ...]:
        """Names of the fields of a position in a checkpoint."""

    def newest(self, after: Position, most: int | None) -> Position:
        """Return the position of the last attempt among the first `most` attempts after `after`
        (None: among all); `after` if there is no attempt. No attempt will appear later at or before
        the returned position."""

    def window(self, after: Position, through: Position) -> list[Piece]:
        """Return pieces that together contain each attempt after `after` and up to `through`
        exactly once."""


def spread(pieces: Sequence[Piece], parts: int | None) -> list[ReadPart]:
    """Return at most `parts` parts with about equal numbers of pieces (None: one part for each
    piece). Return at least one part, because Spark needs one."""
    count = max(1, min(parts or len(pieces), len(pieces)))
    return [ReadPart(tuple(pieces[n::count])) for n in range(count)]


def ranges(first: int, past: int, step: int) -> list[tuple[int, int]]:
    """Split [first, past) into ranges of at most `step` numbers. Return at least one range, which
    may be empty."""
    starts = list(range(first, past, step)) or [first]
    return list(zip(starts, [*starts[1:], max(past, first)], strict=True))
