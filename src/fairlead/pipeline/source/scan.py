"""A batch read: a plan of parts that Spark reads at once, each a stream of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from pyspark.sql.datasource import DataSourceReader, InputPartition

from fairlead.errors import ConfigurationError
from fairlead.pipeline.source.options import ReadOptions
from fairlead.pipeline.source.tables import BACKLOG_READ
from fairlead.ports.history import Place

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

    def newest(self, after: Place, most: int | None) -> Place:
        """The place of the last attempt behind `after`, or of the last of the first `most`; `after`
        when there is none. No attempt will ever appear at or before it."""

    def stretch(self, after: Place, through: Place) -> list[Piece]:
        """Pieces that hold every attempt behind `after` up to `through` once."""


def scan_of(options: ReadOptions) -> Scan:
    """Of the store that the URL names. Raises ConfigurationError."""
    if urlsplit(options.url).scheme == "cassandra" and options.table is BACKLOG_READ:
        from fairlead.pipeline.source.cassandra import CassandraScan

        return CassandraScan(options)
    return followed_scan_of(options)


def followed_scan_of(options: ReadOptions) -> FollowedScan:
    """Likewise, of one that has attempts. Raises ConfigurationError."""
    from fairlead.connect import task_store

    if urlsplit(options.url).scheme == "cassandra":
        raise ConfigurationError(
            f"Cassandra keeps no {options.table.name}, only backlogs: read them from sqlite:///..."
            " or postgresql://..."
        )
    if task_store(options.url).database.dialect == "sqlite":
        from fairlead.pipeline.source.sqlite import SqliteScan

        return SqliteScan(options)
    from fairlead.pipeline.source.postgres import PostgresScan

    return PostgresScan(options)


class FairleadReader(DataSourceReader):
    """See `FairleadSource`. It has no `pushFilters`, and must not get one."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._scan = scan_of(options)

    def partitions(self) -> Sequence[Part]:
        """Planned once a `load()`: one that is loaded anew sees what was added since."""
        return spread(self._scan.plan(), self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        for piece in partition.pieces:
            yield from self._scan.read(piece)


def spread(pieces: Sequence[Piece], parts: int | None) -> list[Part]:
    """At most `parts` parts of about as many pieces each, else one for each; at least one, as Spark
    wants it."""
    count = max(1, min(parts or len(pieces), len(pieces)))
    return [Part(tuple(pieces[n::count])) for n in range(count)]


def ranges(first: int, past: int, step: int) -> list[tuple[int, int]]:
    """[first, past) in ranges of at most `step`; one, maybe empty, at least."""
    starts = list(range(first, past, step)) or [first]
    return list(zip(starts, [*starts[1:], max(past, first)], strict=True))
