"""`submit FILE`: submits each row of a file as one task; a repeated run adds no task."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fairlead.pipeline.bulk.message import SubmissionTotals
    from fairlead.pipeline.runs import OnRows

_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


@dataclass(frozen=True)
class FileSubmission:
    """File to submit, with the options of the command."""

    file: Path
    url: str = field(repr=False)
    queue: str
    task: str | None = None
    args: str | None = None
    submission_id: str | None = None
    order_by: str | None = None
    on_conflict: str = "ignore"
    on_error: str = "fail"
    publish: str = "atomic"

    @property
    def identity(self) -> str:
        """Return the submission id: the given one, or a digest of path, modification time and size
        of every file, and of the options that shape the tasks."""
        if self.submission_id:
            return self.submission_id
        files = sorted(self.file.rglob("*")) if self.file.is_dir() else [self.file]
        stats = [
            (str(path.absolute()), path.stat().st_mtime_ns, path.stat().st_size)
            for path in files
            if path.is_file()
        ]
        made = (stats, self.queue, self.task, self.args)
        return f"{self.file.name}-{hashlib.sha256(repr(made).encode()).hexdigest()[:16]}"

    @property
    def format(self) -> str:
        """Return the format of the file; a folder is read as Parquet. Raise ConfigurationError for
        an unknown suffix."""
        if self.file.is_dir():
            return "parquet"
        found = _FORMATS.get(self.file.suffix.lower())
        if found is None:
            raise ConfigurationError(
                f"{self.file}: unknown kind of file; known suffixes: {', '.join(sorted(_FORMATS))}"
            )
        return found

    def described(self) -> dict[str, Any]:
        """Return the options for a dry run, without secrets."""
        return {
            name: str(value)
            for name, value in asdict(self).items()
            if name != "url" and value is not None
        } | {
            "submission_id": self.identity,
            "format": self.format,
        }


def run_submit(
    spark: SparkSession, submission: FileSubmission, on_rows: OnRows
) -> SubmissionTotals:
    """Submit the file. Raise RefusedRows with row, column and reason; ConfigurationError for
    columns that do not fit."""
    from fairlead.pipeline.submit import bulk_submit

    totals = bulk_submit(
        read(spark, submission),
        submission.url,
        queue=submission.queue,
        task=submission.task,
        submission_id=submission.identity,
        order_by=submission.order_by,
        args_columns=submission.args,
        on_conflict=submission.on_conflict,
        on_error=submission.on_error,
        publish=submission.publish,
    )
    on_rows("tasks", totals.inserted)
    return totals


def read(spark: SparkSession, submission: FileSubmission) -> DataFrame:
    """Return the rows of the file."""
    reader = spark.read
    if submission.format == "csv":
        reader = reader.option("header", True).option("inferSchema", True)
    return reader.format(submission.format).load(str(submission.file))
