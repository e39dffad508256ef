"""Tasks that were submitted and have no finished attempt. The history of attempts alone does not
show them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def waiting(tasks: DataFrame) -> DataFrame:
    """Return (queue, fairness_key, weight, ready_at) of the tasks of silver.tasks without a
    finished attempt: tasks that wait for their first run, or are in it."""
    return tasks.where(F.col("last_finished_at").isNull()).select(
        "queue", "fairness_key", "weight", F.col("first_ready_at").alias("ready_at")
    )
