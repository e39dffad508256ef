"""Tasks that were submitted and have no finished attempt, so that the history of attempts alone
does not show these tasks."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def waiting(tasks: DataFrame) -> DataFrame:
    """Return (queue, fairness_key, weight, ready_at) of the tasks of silver.tasks without a
    finished attempt: tasks whose first run has not begun or has not ended."""
    return tasks.where(F.col("last_finished_at").isNull()).select(
        "queue", "fairness_key", "weight", F.col("first_ready_at").alias("ready_at")
    )
