"""`submit FILE`: submits each row of a file as one task; a repeated run adds no task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.declared_types import ORDER, read_types
from fairlead.pipeline.bulk.files import DataFile, data_files, digest_of, format_of
from fairlead.pipeline.bulk.options import listed
from fairlead.pipeline.bulk.text_rows import (
    JSON_SCHEMA,
    Row,
    batches,
    csv_header,
    csv_rows,
    csv_schema,
    json_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from fairlead.pipeline.bulk.jobs import SubmissionTotals
    from fairlead.pipeline.runs import OnRows

_OWN_TYPES = {"priority": "int", "weight": "float", "run_at": "timestamp"}
"""Types of known columns that a file gives as text."""


@dataclass(frozen=True)
class FileSubmission:
    """File to submit, with the options of the command."""

    file: Path
    url: str = field(repr=False)
    queue: str
    task: str | None = None
    args: str | None = None
    types: str | None = None
    submission_id: str | None = None
    order_by: str | None = None
    on_conflict: str = "ignore"
    on_error: str = "fail"
    publish: str = "atomic"

    @cached_property
    def files(self) -> list[DataFile]:
        """Files with the rows."""
        return data_files(self.file)

    @cached_property
    def content(self) -> str:
        """Digest of the bytes of the files, and of the options that shape the tasks."""
        shape = (self.format, self.queue, self.task, sorted(self.args_columns), self._declared)
        return digest_of(self.files, shape)

    @property
    def identity(self) -> str:
        """Return the submission id: the given one, or the beginning of the digest."""
        return self.submission_id or f"file-{self.content[:32]}"

    @cached_property
    def format(self) -> str:
        """Format of the files. Raise ConfigurationError for an unknown suffix."""
        return format_of(self.file, self.files)

    @property
    def args_columns(self) -> tuple[str, ...]:
        """Columns that are arguments."""
        return listed(self.args or "")

    @cached_property
    def columns(self) -> list[str]:
        """Columns that are known without Spark: those of a CSV file, or those that folders give."""
        if self.format == "csv":
            return csv_header(self.files)
        return [name for name, _ in self.files[0].partition]

    @cached_property
    def text_types(self) -> dict[str, str]:
        """Types of the columns of text. Raise ConfigurationError for unknown ones."""
        types = dict(self._declared)
        if self.format == "json":
            if types:
                raise ConfigurationError("--types: JSON has types of its own; leave the option out")
            return {}
        for name in self.columns:
            own = "text" if name in self.args_columns else _OWN_TYPES.get(name, "text")
            types.setdefault(name, own)
        order = self.order_by
        if order in self.columns and types[order] == "text" and order not in dict(self._declared):
            raise ConfigurationError(
                f"--order-by {order}: declare the type of this column of text, for example --types"
                f" {order}=int"
            )
        return types

    def described(self) -> dict[str, Any]:
        """Return the options for a dry run, without secrets."""
        types = self.text_types
        return {
            name: str(value)
            for name, value in asdict(self).items()
            if name != "url" and value is not None
        } | {
            "submission_id": self.identity,
            "format": self.format,
            "types": types or f"as in the {self.format} file",
        }

    @property
    def _declared(self) -> tuple[tuple[str, str], ...]:
        declared, wrong = read_types(self.types or "")
        if wrong:
            raise ConfigurationError("; ".join(wrong))
        return declared


def run_submit(
    spark: SparkSession, submission: FileSubmission, on_rows: OnRows
) -> tuple[SubmissionTotals, dict[str, str]]:
    """Submit the file; return the totals, and the type of each column. Raise RefusedRows with row,
    column and reason; ContentDiffers for another file under the same submission id;
    ConfigurationError for columns that do not fit."""
    from fairlead.pipeline.submit import bulk_submit

    df = read(spark, submission)
    is_json = submission.format == "json"
    totals = bulk_submit(
        df,
        submission.url,
        queue=submission.queue,
        task=submission.task,
        submission_id=submission.identity,
        content=submission.content,
        order_by=_order_column(submission),
        args_columns=None if is_json else submission.args,
        types=",".join(f"{name}={type_}" for name, type_ in submission.text_types.items()) or None,
        on_conflict=submission.on_conflict,
        on_error=submission.on_error,
        publish=submission.publish,
    )
    on_rows("tasks", totals.inserted)
    types = {} if is_json else {f.name: f.dataType.simpleString() for f in df.schema.fields}
    return totals, {
        name: submission.text_types.get(name, type_)
        for name, type_ in types.items()
        if not name.startswith("_fairlead_")
    }


def read(spark: SparkSession, submission: FileSubmission) -> DataFrame:
    """Return the rows of the file. A task of Spark reads a whole CSV or JSON file."""
    if submission.format == "parquet":
        return _parquet(spark, submission.file)
    from pyspark.sql.pandas.types import from_arrow_schema

    files, columns = submission.files, submission.columns
    rows: Callable[[DataFile], Iterator[Row]]
    if submission.format == "csv":
        schema, rows = csv_schema(columns), partial(csv_rows, columns=columns)
    else:
        args = submission.args_columns
        order_by = submission.order_by if _order_column(submission) == ORDER else None
        schema, rows = JSON_SCHEMA, partial(json_rows, args=args, order_by=order_by)

    def rows_of(numbers: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for number in (n for batch in numbers for n in batch.column(0).to_pylist()):
            yield from batches(rows(files[number]), schema)

    count = len(files)
    return spark.range(0, count, 1, count).mapInArrow(rows_of, from_arrow_schema(schema))


def _parquet(spark: SparkSession, file: Path) -> DataFrame:
    """Return the rows of Parquet files. The columns that folders give stay text."""
    inference = "spark.sql.sources.partitionColumnTypeInference.enabled"
    before = spark.conf.get(inference)
    spark.conf.set(inference, "false")
    try:
        return spark.read.parquet(str(file))
    finally:
        spark.conf.set(inference, str(before))


def _order_column(submission: FileSubmission) -> str | None:
    name = submission.order_by
    is_given = name is None or submission.format != "json" or name in JSON_SCHEMA.names
    return name if is_given else ORDER
