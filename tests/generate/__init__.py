"""Attempts with known truth, any number of them: for tests that compare tables with what must come
out, and for benchmarks.

The same for the same parameters whatever the number of cores and partitions: a tenant's arrivals
come from a generator of its own, and everything else from a hash of the task and its run.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tests.generate.lake import write_lake
from tests.generate.record import recorded
from tests.generate.runs import timed
from tests.generate.truth import Truth, Work

__all__ = ["Truth", "Work", "attempts", "write_lake"]


def attempts(spark: SparkSession, truth: Truth) -> DataFrame:
    """Rows of bronze.attempts, in no order."""
    return timed(spark, truth).transform(recorded, truth)
