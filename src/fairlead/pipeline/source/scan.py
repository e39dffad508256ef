"""A batch read: a plan of parts that Spark reads in parallel, each a stream of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fairlead.errors import ConfigurationError
from fairlead.pipeline.source.options import ReadOptions
from fairlead.pipeline.source.pieces import FollowedScan, ReadPart, Scan, spread
from fairlead.pipeline.source.tables import BACKLOG_READ
from fairlead.urls import split_url

_BACKLOGS_ONLY = "cassandra"
READABLE = "sqlite:///... or postgresql://..."


def scan_of(options: ReadOptions) -> Scan:
    """Return the scan of the store that the URL names. Raises ConfigurationError."""
    if split_url(options.url).scheme == _BACKLOGS_ONLY and options.table is BACKLOG_READ:
        from fairlead.pipeline.source.cassandra import CassandraScan

        return CassandraScan(options)
    return followed_scan_of(options)


def followed_scan_of(options: ReadOptions) -> FollowedScan:
    """Return the scan of a store that keeps attempts, so that a stream can follow it. Raises
    ConfigurationError."""
    from fairlead.connect import task_store

    scheme = split_url(options.url).scheme
    if scheme == _BACKLOGS_ONLY:
        raise ConfigurationError(
            f"Cassandra keeps no {options.table.name}, only backlogs: read {options.table.name}"
            f" from {READABLE}"
        )
    task_store(options.url)  # refuses a URL of an unknown kind
    if scheme == "sqlite":
        from fairlead.pipeline.source.sqlite import SqliteScan

        return SqliteScan(options)
    from fairlead.pipeline.source.postgres import PostgresScan

    return PostgresScan(options)


class FairleadReader(DataSourceReader):
    """Reader of a batch. This class must not get `pushFilters`; see the module `source`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._scan = scan_of(options)

    def partitions(self) -> Sequence[ReadPart]:
        """Return the parts, planned once for each `load()`; a later load sees later rows."""
        return spread(self._scan.plan(), self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadPart)
        for piece in partition.pieces:
            yield from self._scan.read(piece)
