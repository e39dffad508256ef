"""Writes to the data source `fairlead`: one bulk submit for each batch write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.rows import RowEncoder, check_columns
from fairlead.pipeline.bulk.stage import StagedPart, opened


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of a Spark task that staged rows."""

    part: StagedPart


class BulkWriter(DataSourceArrowWriter):
    """Batch writer. Copies of it stage rows in Spark tasks; only the parts whose messages Spark
    passes to `commit` become tasks."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Raise ConfigurationError for wrong options and columns."""
        if overwrite:
            raise ConfigurationError(
                'fairlead takes mode "append" only: tasks that run cannot be overwritten'
            )
        self._options = BulkOptions.read(options)
        check_columns(schema.names, self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of this partition."""
        context = TaskContext.get()
        assert context is not None, "only a task of Spark writes"
        part = context.partitionId()
        with opened(self._options.url or "") as store:
            return Staged(store.stage(part, RowEncoder(self._options, part).pieces(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged rows."""
        options = self._options
        with opened(options.url or "") as store:
            store.publish(options.submission_id, _parts(messages), options.content)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged rows, because a task or the commit failed for good."""
        with opened(self._options.url or "") as store:
            store.drop(_parts(messages))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [message.part for message in messages if isinstance(message, Staged)]
