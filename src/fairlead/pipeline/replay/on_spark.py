"""Spark runner of replay candidates: each candidate is one Spark task, and every worker reads the
arrivals once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.candidate import Candidate, CandidateResult, Runner, Setup, perform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def on_spark(spark: SparkSession, arrivals: Arrivals) -> Runner:
    """Return a runner on Spark."""
    context = spark.sparkContext
    sent = context.broadcast(arrivals)

    def run(candidates: Sequence[Candidate], setup: Setup) -> list[CandidateResult]:
        # A partition for each candidate: Spark starts one task for each.
        each = context.parallelize(candidates, len(candidates))
        return each.map(lambda candidate: perform(candidate, sent.value, setup)).collect()

    return run
