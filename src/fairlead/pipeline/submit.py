"""Millions of tasks out of a DataFrame, in one submission that may be repeated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fairlead.errors import (
    ConfigurationError,
    FairleadError,
    InvalidTask,
    SchemaMismatch,
    StoreUnavailable,
)
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.message import KeyTaken, StageLost, Superseded, Totals
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.errors import RefusedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART = "fairlead_part"
_ERROR = re.compile(r"^fairlead(?:\.[a-z_]+)+\.(\w+): (.*)$", re.MULTILINE)
_TOLD = (
    RefusedRows,
    KeyTaken,
    Superseded,
    StageLost,
    InvalidTask,
    ConfigurationError,
    StoreUnavailable,
    SchemaMismatch,
)


def bulk_submit(
    df: DataFrame,
    url: str,
    *,
    queue: str | None = None,
    task: str | None = None,
    submission_id: str,
    order_by: str | None = None,
    **options: Any,
) -> Totals:
    """Submit a task for each row; a submission that was made already is only reported, without
    running anything.

    `df`: see `fairlead.pipeline.bulk.columns` for the columns, `BulkOptions` for `options`; one
    that is None is left out. `order_by`: a column. The tasks of one ordering key are submitted in
    its order; without it in no certain one. Raises ConfigurationError and InvalidTask for options
    and columns that do not fit, before anything runs; RefusedRows for rows that do not, KeyTaken,
    Superseded: then nothing was submitted, unless the job is published in chunks.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    given = {"url": url, "queue": queue, "task": task, "submission_id": submission_id, **options}
    texts = {name: _text(value) for name, value in given.items() if value is not None}
    job = BulkJob(BulkOptions.read(texts))
    job.open(to_arrow_schema(df.schema))
    if (totals := job.totals()) is not None:
        return totals
    if order_by is not None:
        df = df.transform(_in_order, order_by, job.partitions)
    from fairlead.pipeline.source import FairleadSource

    df.sparkSession.dataSource.register(FairleadSource)
    try:
        df.write.format("fairlead").options(**texts).mode("append").save()
    except Exception as error:
        if (own := _own(error)) is None:
            raise
        raise own from None
    totals = job.totals()
    assert totals is not None
    return totals


def _in_order(df: DataFrame, order_by: str, partitions: int) -> DataFrame:
    """The same rows: those of one ordering key in one partition, and sorted in it."""
    from pyspark.sql import functions as F

    missing = [column for column in (order_by, "ordering_key") if column not in df.columns]
    if missing:
        raise ConfigurationError(
            f"order_by: the DataFrame has no column {' and no column '.join(missing)}"
        )
    key = F.coalesce(F.crc32(F.col("ordering_key")), F.xxhash64(F.col(order_by)))
    return (
        df.withColumn(_PART, F.pmod(key, F.lit(partitions)).cast("int"))
        .repartitionById(partitions, F.col(_PART))
        .sortWithinPartitions(F.col(order_by))
        .drop(_PART)
    )


def _own(error: Exception) -> FairleadError | None:
    """What Spark's error tells of one of ours, which was raised in another process."""
    known = {kind.__name__: kind for kind in _TOLD}
    for name, message in reversed(_ERROR.findall(str(error))):
        if name in known:
            return known[name](message.strip())
    return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
