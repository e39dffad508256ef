"""`submit APP TASK FILE`: submits each row of a file as one task; a repeated run adds no task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.errors import RefusedRows, java_cause
from fairlead.pipeline.submit import bulk_submit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fairlead.pipeline.bulk.stage import SubmissionTotals

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
}
_VALUES = {"parquet": "typed", "csv": "text", "json": "json"}


@dataclass(frozen=True)
class FileSubmission:
    """A file, or a folder of files of one format, whose rows are tasks of one name."""

    app: str
    task: str
    file: Path
    submission_id: str | None = None
    url: str | None = field(default=None, repr=False)
    """URL of the task store; None for that of the App."""

    @cached_property
    def files(self) -> list[Path]:
        """Files that Spark reads. Raise ConfigurationError if there are none."""
        if not self.file.is_dir():
            return [self.file]
        names = (path.relative_to(self.file) for path in sorted(self.file.rglob("*")))
        seen = [self.file / name for name in names if not any(map(_is_hidden, name.parts))]
        if not (files := [path for path in seen if path.is_file()]):
            raise ConfigurationError(f"{self.file}: no file in this folder")
        return files

    @cached_property
    def format(self) -> str:
        """Format of the files. Raise ConfigurationError for an unknown suffix, or several
        formats."""
        suffixes = {path.suffix.lower() for path in self.files}
        formats = {FORMATS.get(suffix, "") for suffix in suffixes}
        if len(formats) != 1 or "" in formats:
            raise ConfigurationError(
                f"{self.file}: {', '.join(sorted(suffixes))}: give files of one kind; known"
                f" suffixes: {', '.join(sorted(FORMATS))}"
            )
        return formats.pop()

    @cached_property
    def content(self) -> str:
        """Digest of the bytes of the files, of their folders, and of the task. The names of the
        files do not count: a copy or a renamed file has the same digest."""
        rows = []
        for path in self.files:
            folder = "." if path == self.file else path.parent.relative_to(self.file).as_posix()
            with path.open("rb") as file:
                rows.append((folder, hashlib.file_digest(file, "sha256").hexdigest()))
        return hashlib.sha256(repr((self.app, self.task, sorted(rows))).encode()).hexdigest()

    @cached_property
    def options(self) -> dict[str, str]:
        """Options of the bulk submit. Raise ConfigurationError for an unknown App, task or kind of
        file."""
        given = {
            "app": self.app,
            "task": self.task,
            "submission_id": self.submission_id or f"file-{self.content[:32]}",
            "content": self.content,
            "values": _VALUES[self.format],
        }
        if self.url is not None:
            given["url"] = self.url
        BulkOptions.read(given).handler()
        return given


def run_submit(spark: SparkSession, submission: FileSubmission) -> SubmissionTotals:
    """Submit the rows; return the totals. Raise RefusedRows for rows that do not fit or that Spark
    cannot read, and ContentDiffers for another file under the same submission id."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return bulk_submit(read(spark, submission), **submission.options)
    except (PySparkException, Py4JError) as error:
        cause = java_cause(error)
        raise RefusedRows(f"{submission.file}: nothing was submitted: {cause}") from error


def read(spark: SparkSession, submission: FileSubmission) -> DataFrame:
    """Return the rows of the files. The columns of a CSV file, and those that the names of folders
    give, are texts; a line of JSON is one text."""
    inference = "spark.sql.sources.partitionColumnTypeInference.enabled"
    before = spark.conf.get(inference)
    spark.conf.set(inference, "false")
    path = str(submission.file)
    try:
        if submission.format == "parquet":
            return spark.read.parquet(path)
        if submission.format == "json":
            return spark.read.text(path)
        # RFC 4180: a quote is doubled, and may hold line ends. An empty cell is null, `""` a text.
        return spark.read.csv(
            path,
            header=True,
            enforceSchema=False,
            mode="FAILFAST",
            multiLine=True,
            escape='"',
            nullValue="\0",
            emptyValue="",
        )
    finally:
        spark.conf.set(inference, str(before))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
