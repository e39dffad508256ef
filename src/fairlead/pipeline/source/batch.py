"""The reader of a batch, and what it shares with the stream: parts that Spark tasks read in
parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fairlead.connect import task_store
from fairlead.pipeline.source.options import ReadOptions
from fairlead.pipeline.source.scan import Piece, Scan
from fairlead.urls import split_url


@dataclass(frozen=True)
class ReadPart(InputPartition):
    """Pieces that one Spark task reads; the part may be empty."""

    pieces: tuple[Piece, ...]


def scan_of(options: ReadOptions) -> Scan:
    """Return the scan of the store that the URL names. Raises ConfigurationError."""
    task_store(options.url)  # refuses a URL of another kind
    if split_url(options.url).scheme == "sqlite":
        from fairlead.pipeline.source.sqlite import SqliteScan

        return SqliteScan(options)
    from fairlead.pipeline.source.postgres import PostgresScan

    return PostgresScan(options)


def spread(pieces: Sequence[Piece], parts: int | None) -> list[ReadPart]:
    """Return at most `parts` parts with about equal numbers of pieces (None: one part for each
    piece). Return at least one part, because Spark needs one."""
    count = max(1, min(parts or len(pieces), len(pieces)))
    return [ReadPart(tuple(pieces[n::count])) for n in range(count)]


def read_part(scan: Scan, part: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all pieces of a part."""
    assert isinstance(part, ReadPart)
    for piece in part.pieces:
        yield from scan.read(piece)


class FairleadReader(DataSourceReader):
    """Reader of a batch. This class must not get `pushFilters`; see the module `source`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._scan = scan_of(options)

    def partitions(self) -> Sequence[ReadPart]:
        """Return the parts, planned once for each `load()`; a later load sees later rows."""
        return spread(self._scan.plan(), self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._scan, partition)
