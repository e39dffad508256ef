"""`submit FILE`: one task for each row of a file, exactly once however often it is run."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fairlead.pipeline.bulk.job import Totals
    from fairlead.pipeline.runs import OnRows

_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


@dataclass(frozen=True)
class Submission:
    """What to submit, and how; see the options of the command."""

    file: Path
    url: str
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
        """The submission id: as given, or from path, time of change and size of every file, and
        from what is made of them."""
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
        """Of the file; a folder is taken for Parquet. Raises ConfigurationError."""
        if self.file.is_dir():
            return "parquet"
        found = _FORMATS.get(self.file.suffix.lower())
        if found is None:
            raise ConfigurationError(
                f"{self.file}: unknown kind of file; known: {', '.join(sorted(_FORMATS))}"
            )
        return found

    def described(self) -> dict[str, Any]:
        """For a dry run; no secrets."""
        return {
            name: str(value)
            for name, value in asdict(self).items()
            if name != "url" and value is not None
        } | {
            "submission_id": self.identity,
            "format": self.format,
        }


def run_submit(spark: SparkSession, submission: Submission, on_rows: OnRows) -> Totals:
    """Submit it. Raises RefusedRows naming row, column and reason; ConfigurationError for columns
    that do not fit."""
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


def read(spark: SparkSession, submission: Submission) -> DataFrame:
    """The file's rows."""
    reader = spark.read
    if submission.format == "csv":
        reader = reader.option("header", True).option("inferSchema", True)
    return reader.format(submission.format).load(str(submission.file))
