"""Generated attempts with known truth, in any number: for tests that compare tables with the
expected ones, and for benchmarks.

Equal parameters give equal attempts, whatever the number of cores and partitions: the arrivals of a
tenant come from a generator of their own, and everything else from a hash of the task and its run.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tests.generate.lake import write_lake
from tests.generate.record import recorded
from tests.generate.runs import timed
from tests.generate.truth import Truth, Work

__all__ = ["Truth", "Work", "attempts", "write_lake"]


def attempts(spark: SparkSession, truth: Truth) -> DataFrame:
    """Return rows of bronze.attempts, in no order."""
    return timed(spark, truth).transform(recorded, truth)
