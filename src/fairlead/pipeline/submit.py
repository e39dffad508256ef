"""Bulk submit from a DataFrame: millions of tasks in one submission that may be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.jobs import SubmissionTotals
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.errors import fairlead_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART = "fairlead_part"
_SORTED_AS = {
    "int": "bigint",
    "decimal": "decimal(38,18)",
    "float": "double",
    "timestamp": "timestamp",
    "date": "date",
}
"""Types of Spark in which a column of text with a declared type is sorted."""


def bulk_submit(
    df: DataFrame,
    url: str,
    *,
    queue: str | None = None,
    task: str | None = None,
    submission_id: str,
    order_by: str | None = None,
    **options: Any,
) -> SubmissionTotals:
    """Submit a task for each row. For a submission that was made earlier, only compare the rows
    with the submitted ones, and return its totals; with on_repeat="skip", read no rows. A DataFrame
    without rows submits nothing, and a later call with the same submission_id may give rows.

    df: rows with the columns that `fairlead.pipeline.bulk.columns` lists. options: fields of
    `BulkOptions`; None stands for the default. order_by: column that orders the tasks of an
    ordering key; without it their order is undefined.

    Raise ConfigurationError, InvalidTask and SchemaMismatch for wrong options, columns and stores
    before anything runs. Raise ContentDiffers if the submission was made with other rows,
    RefusedRows for wrong rows, KeyTaken, RunSuperseded and StageLost;
    then nothing was submitted, unless the job is published in chunks. Raise StoreUnavailable.
    """
    from fairlead.pipeline.source import FairleadSource
    from fairlead.pipeline.source.sink import arrow_schema

    given = {"url": url, "queue": queue, "task": task, "submission_id": submission_id, **options}
    texts = {name: _text(value) for name, value in given.items() if value is not None}
    job = BulkJob(BulkOptions.read(texts))
    job.open(arrow_schema(df.schema))
    if not job.reads_rows and (totals := job.totals()) is not None:
        return totals
    if order_by is not None:
        df = df.transform(_in_order, order_by, job)

    df.sparkSession.dataSource.register(FairleadSource)
    try:
        df.write.format("fairlead").options(**texts).mode("append").save()
    except Exception as error:
        if (own := fairlead_error(error)) is None:
            raise
        raise own from None
    return job.totals() or SubmissionTotals(submission_id, 0, 0, 0, 0, job.options.publish)


def _in_order(df: DataFrame, order_by: str, job: BulkJob) -> DataFrame:
    """Return the rows with each ordering key in one partition, sorted there."""
    from pyspark.sql import functions as F

    missing = [column for column in (order_by, "ordering_key") if column not in df.columns]
    if missing:
        raise ConfigurationError(
            f"order_by: the DataFrame has no column {' and no column '.join(missing)}"
        )
    key = F.coalesce(F.crc32(F.col("ordering_key")), F.xxhash64(F.col(order_by)))
    # Values that do not fit their declared type come first; the gate of rows refuses them.
    type_ = _SORTED_AS.get(dict(job.options.types).get(order_by, ""))
    position = F.col(order_by) if type_ is None else F.col(order_by).try_cast(type_)
    return (
        df.withColumn(_PART, F.pmod(key, F.lit(job.partitions)).cast("int"))
        .repartitionById(job.partitions, F.col(_PART))
        .sortWithinPartitions(position)
        .drop(_PART)
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
