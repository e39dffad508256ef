"""Writes to the data source `fairlead`: one bulk submit for a batch write, and one for each
micro-batch of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.pipeline.bulk.columns import check
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.jobs import StagedPart
from fairlead.pipeline.bulk.options import BulkOptions

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch. The id of the query is the one
in CHECKPOINT/metadata; a restart of the query keeps it, and a new checkpoint has a new one."""


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of a Spark task that staged rows."""

    submission_id: str
    epoch: str
    message: StagedPart | None
    """None when the submission is published and its rows are not compared."""


class BulkWriter(DataSourceArrowWriter):
    """Batch writer. The driver creates the writer, which opens the submission; copies of it stage
    rows in Spark tasks, and one copy commits or aborts."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Raise ConfigurationError or InvalidTask with all problems of the options and columns."""
        self._job = BulkJob(_read(options, overwrite))
        self._job.open(arrow_schema(schema))

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
    """Stream writer: each micro-batch is a submission of its own, named by the id in the checkpoint
    and the number of the batch, after the submission_id of the options. So the batches of a new
    checkpoint are new, and a repeated batch of the same checkpoint is known.

    Spark commits in another process than the one that created the writer, so `commit` takes the
    submission from the messages.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Raise ConfigurationError or InvalidTask with all problems of the options and columns."""
        self._options, self._schema = _read(options, overwrite), arrow_schema(schema)
        check(self._schema, self._options.with_submission_id("each micro-batch has one"))
        self._epoch = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of this partition of this micro-batch."""
        context = _context()
        submission_id = micro_batch_id(
            self._options.submission_id,
            context.getLocalProperty(_QUERY_ID),
            context.getLocalProperty(_BATCH_ID),
        )
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


def micro_batch_id(given: str | None, query: str | None, batch: str | None) -> str:
    """Return the submission id of a micro-batch, from the id that Spark wrote into
    CHECKPOINT/metadata and the number of the batch. Raise ConfigurationError if Spark does not say
    them."""
    if not query or not batch:
        raise ConfigurationError(
            f"Spark does not say the id of the checkpoint ({_QUERY_ID}) and the number of the"
            f" micro-batch ({_BATCH_ID}), so a repeated batch could not be told from a new one; use"
            " writeStream.foreachBatch and bulk_submit with a submission_id that names both"
        )
    return "/".join((*([given] if given else []), query, batch))


def _read(options: Mapping[str, str], overwrite: bool) -> BulkOptions:
    if overwrite:
        raise ConfigurationError(
            'fairlead takes mode "append" only: tasks that run cannot be overwritten'
        )
    return BulkOptions.read(options)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow types of the columns. Raise InvalidTask for a type that cannot leave
    Spark."""
    fields, wrong = [], []
    for field in schema.fields:
        try:
            fields.append(pa.field(field.name, to_arrow_type(field.dataType), field.nullable))
        except PySparkException:
            wrong.append(f"column {field.name} has type {field.dataType.simpleString()}")
    if wrong:
        raise InvalidTask(
            f"these columns do not fit a bulk submit: {'; '.join(wrong)}: cast it to string, or"
            " leave it out"
        )
    return pa.schema(fields)


def _stage(job: BulkJob, batches: Iterator[pa.RecordBatch]) -> Staged:
    message = job.stage(batches, _context().partitionId()) if job.reads_rows else None
    return Staged(job.submission_id, job.epoch, message)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [m.message for m in messages if isinstance(m, Staged) and m.message is not None]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only a task of Spark writes"
    return context
