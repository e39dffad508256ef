"""Writes to the data source `fairlead`: one bulk submit for a batch write, and one for each
micro-batch of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.rows import RowEncoder, check_columns
from fairlead.pipeline.bulk.stage import StagedPart, opened

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch. The id of the query is the one
in CHECKPOINT/metadata; a restart of the query keeps it, and a new checkpoint has a new one."""


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of a Spark task that staged rows."""

    submission_id: str
    part: StagedPart


class BulkWriter(DataSourceArrowWriter):
    """Batch writer. Copies of it stage rows in Spark tasks; only the parts whose messages Spark
    passes to `commit` become tasks."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Raise ConfigurationError for wrong options and columns."""
        self._options = _read(schema, options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of this partition."""
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged rows."""
        _publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged rows, because a task or the commit failed for good."""
        _drop(self._options, messages)


class BulkStreamWriter(DataSourceStreamArrowWriter):
    """Stream writer: each micro-batch is a submission of its own, named by the id in the checkpoint
    and the number of the batch, after the submission_id of the options. So the batches of a new
    checkpoint are new, and a repeated batch of the same checkpoint is known."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Raise ConfigurationError for wrong options and columns."""
        self._options = _read(schema, options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of this partition of this micro-batch."""
        context = _context()
        query, batch = map(context.getLocalProperty, (_QUERY_ID, _BATCH_ID))
        submission_id = micro_batch_id(self._options.submission_id, query, batch)
        return _stage(msgspec.structs.replace(self._options, submission_id=submission_id), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the micro-batch, under the name that its tasks found."""
        _publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Delete the staged rows, because a task or the commit failed for good."""
        _drop(self._options, messages)


def micro_batch_id(given: str, query: str | None, batch: str | None) -> str:
    """Return the submission id of a micro-batch, from the id that Spark wrote into
    CHECKPOINT/metadata and the number of the batch. Raise ConfigurationError if Spark does not say
    them."""
    if not query or not batch:
        raise ConfigurationError(
            f"Spark does not say the id of the checkpoint ({_QUERY_ID}) and the number of the"
            f" micro-batch ({_BATCH_ID}), so a repeated batch could not be told from a new one; use"
            " writeStream.foreachBatch and bulk_submit with a submission_id that names both"
        )
    return f"{given}/{query}/{batch}"


def _read(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BulkOptions:
    if overwrite:
        raise ConfigurationError(
            'fairlead takes mode "append" only: tasks that run cannot be overwritten'
        )
    read = BulkOptions.read(options)
    check_columns(schema.names, read)
    return read


def _stage(options: BulkOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    part = _context().partitionId()
    with opened(options.url or "") as store:
        staged = store.stage(part, RowEncoder(options, part).pieces(batches))
    return Staged(options.submission_id, staged)


def _publish(options: BulkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    for submission_id in {message.submission_id for message in staged}:
        with opened(options.url or "") as store:
            parts = [message.part for message in staged]
            store.publish(submission_id, parts, options.content)


def _drop(options: BulkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    with opened(options.url or "") as store:
        store.drop(message.part for message in messages if isinstance(message, Staged))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only a task of Spark writes"
    return context
