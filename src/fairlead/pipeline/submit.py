"""Bulk submit from a DataFrame: millions of tasks in one submission that may be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.rows import check_columns
from fairlead.pipeline.bulk.stage import SubmissionTotals, opened
from fairlead.pipeline.errors import fairlead_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def bulk_submit(
    df: DataFrame, *, app: str, task: str, submission_id: str, **options: Any
) -> SubmissionTotals:
    """Submit a task for each row, in the order of the DataFrame. For a submission that was made
    earlier, read no rows, and return its totals. A DataFrame without rows submits nothing, and a
    later call with the same submission_id may give rows.

    df: rows whose columns are the arguments of the task and its options (`fairness_key`, `weight`,
    `priority`, `run_at`, `ordering_key`, `unique_key`, `unique_for`, `context`, `tags`). options:
    other fields of `BulkOptions`; None stands for the default.

    Raise ConfigurationError and SchemaMismatch for wrong options and stores before anything runs,
    RefusedRows for rows that no single submit would take, ContentDiffers and StoreUnavailable; then
    nothing was submitted.
    """
    from fairlead.pipeline.source import FairleadSource

    given = {"app": app, "task": task, "submission_id": submission_id, **options}
    texts = {name: str(value) for name, value in given.items() if value is not None}
    read = BulkOptions.read(texts)
    check_columns(df.columns, read)
    with opened(read.url or "") as store:
        if (totals := store.totals(submission_id, read.content)) is not None:
            return totals
        texts["url"] = read.url or ""
        df.sparkSession.dataSource.register(FairleadSource)
        try:
            df.write.format("fairlead").options(**texts).mode("append").save()
        except Exception as error:
            if (own := fairlead_error(error)) is None:
                raise
            raise own from None
        totals = store.totals(submission_id) or SubmissionTotals(submission_id)
        return SubmissionTotals(submission_id, totals.inserted, totals.duplicate)
