"""Tasks that were submitted and have no finished attempt, so that the history of attempts alone
does not show these tasks."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.models import OPEN_TASKS


def waiting(tasks: DataFrame) -> DataFrame:
    """Return the rows of silver.open_tasks: the tasks of silver.tasks without a finished attempt,
    whose first run has not begun or has not ended."""
    return (
        tasks.where(F.col("last_finished_at").isNull())
        .withColumn("ready_at", F.col("first_ready_at"))
        .select(*OPEN_TASKS.column_names)
    )
