"""Writes to the data source `fairlead`: one bulk submit for a batch write, and one for each
micro-batch of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.columns import check
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.message import StagedPart
from fairlead.pipeline.bulk.options import BulkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of a Spark task that staged rows."""

    submission_id: str
    epoch: str
    message: StagedPart | None
    """None when the submission needed no more rows."""


class BulkWriter(DataSourceArrowWriter):
    """Batch writer. The driver creates the writer, copies of it stage rows in Spark tasks, and one
    copy commits or aborts."""

    def __init__(self, job: BulkJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of this partition. They count only if Spark passes the message to
        `commit`."""
        return _stage(self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged rows."""
        self._job.publish(_staged(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the run without publishing, because a task or the commit failed for good."""
        self._job.abort()


class BulkStreamWriter(DataSourceStreamArrowWriter):
    """Stream writer: each micro-batch is a submission of its own, named by the query and the number
    of the batch.

    Spark commits in another process than the one that created the writer, so `commit` takes the
    submission from the messages.
    """

    def __init__(self, options: BulkOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._epoch = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of this partition of this micro-batch."""
        context = _context()
        query = self._options.submission_id or context.getLocalProperty("sql.streaming.queryId")
        submission_id = f"{query}/{context.getLocalProperty('streaming.sql.batchId')}"
        job = BulkJob(self._options.with_submission_id(submission_id), self._epoch)
        job.open(self._schema)
        return _stage(job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the micro-batch."""
        if (job := self._begun(messages, batchId)) is not None:
            job.publish(_staged(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort the micro-batch, because a task or the commit failed for good."""
        if (job := self._begun(messages, batchId)) is not None:
            job.abort()

    def _begun(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> BulkJob | None:
        """Return the job that the tasks opened; None if no task sent a message."""
        begun = sorted({(m.submission_id, m.epoch) for m in messages if isinstance(m, Staged)})
        if not begun:
            return None
        if len(begun) > 1 or not begun[0][0].endswith(f"/{batch}"):
            raise ConfigurationError(
                f"Spark passed the messages of {begun} with batch {batch}, of which nothing is"
                " published"
            )
        submission_id, epoch = begun[0]
        return BulkJob(self._options.with_submission_id(submission_id), epoch)


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BulkWriter:
    """Open the submission and return its writer. Raise ConfigurationError or InvalidTask with all
    problems of the options and columns."""
    job = BulkJob(_read(options, overwrite))
    job.open(_arrow(schema))
    return BulkWriter(job)


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> BulkStreamWriter:
    """Return the writer of a stream, which opens a submission for each micro-batch."""
    read, columns = _read(options, overwrite), _arrow(schema)
    check(columns, read.with_submission_id("each micro-batch has one"))
    return BulkStreamWriter(read, columns)


def _read(options: Mapping[str, str], overwrite: bool) -> BulkOptions:
    if overwrite:
        raise ConfigurationError(
            'fairlead takes mode "append" only: tasks that run cannot be overwritten'
        )
    return BulkOptions.read(options)


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema)


def _stage(job: BulkJob, batches: Iterator[pa.RecordBatch]) -> Staged:
    is_needed = job.opened is not None and job.opened.needs_rows
    message = job.stage(batches, _context().partitionId()) if is_needed else None
    return Staged(job.submission_id, job.epoch, message)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [m.message for m in messages if isinstance(m, Staged) and m.message is not None]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only a task of Spark writes"
    return context
