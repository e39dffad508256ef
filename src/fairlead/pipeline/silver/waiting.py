"""Who has been submitted and not been heard of since: what the history of attempts alone would not
tell."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def waiting(tasks: DataFrame) -> DataFrame:
    """(queue, fairness_key, weight, ready_at) of the tasks of silver.tasks without an attempt that
    has ended: they wait, from the instant at which they may run, or run for the first time."""
    return tasks.where(F.col("last_finished_at").isNull()).select(
        "queue", "fairness_key", "weight", F.col("first_ready_at").alias("ready_at")
    )
