"""Measures of one attempt: whether it was a run, whether it failed, and how long each part took."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

FAILED = ("failed", "retried", "timed_out", "lost")
"""Outcomes of a failed run."""


def is_run() -> Column:
    """Return whether the row is a run: a node called the handler, or was lost before it could
    record the start."""
    return F.col("started_at").isNotNull() | (F.col("outcome") == "lost")


HAS_FAILED = (
    f"(started_at IS NOT NULL OR outcome = 'lost') AND outcome IN ({', '.join(map(repr, FAILED))})"
)
"""Condition that a row is a failed run, in the SQL of Spark and DuckDB. The row of a task that a
person marked as failed is not a run."""


def has_failed() -> Column:
    """Return whether the row is a failed run."""
    return F.expr(HAS_FAILED)


def elapsed_us(since: str, until: str) -> Column:
    """Return the microseconds between two instants: null when one is missing, 0 when the clocks of
    two machines disagree."""
    us = F.unix_micros(F.col(until)) - F.unix_micros(F.col(since))
    return F.when(us >= 0, us).when(us < 0, F.lit(0).cast("bigint"))


def measures() -> dict[str, Column]:
    """Return the columns in microseconds by measure; null where an attempt has no such measure.

    pickup: from ready to started. run: from started to finished. e2e: from submitted to finished,
    for the attempt that made the task DONE. retry_delay: from due to started, for every run after
    the first.
    """
    return {
        "pickup": elapsed_us("ready_at", "started_at"),
        "run": elapsed_us("started_at", "finished_at"),
        "e2e": F.when(F.col("next_state") == "DONE", elapsed_us("submitted_at", "finished_at")),
        "retry_delay": F.when(F.col("attempt") > 1, elapsed_us("run_at", "started_at")),
    }
