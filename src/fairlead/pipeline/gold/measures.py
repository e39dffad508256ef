"""One attempt, measured: whether it was a run, whether it failed, and how long each part of it
took."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

FAILED = ("failed", "retried", "timed_out", "lost")
"""Outcomes of a run that did not do what it should."""


def is_run() -> Column:
    """Whether the row is a run: a node took it and called the handler, or died before it could say
    so."""
    return F.col("started_at").isNotNull() | (F.col("outcome") == "lost")


def has_failed() -> Column:
    """Whether it is a run that failed. A task which a person marked as failed did not run then."""
    return is_run() & F.col("outcome").isin(*FAILED)


def elapsed_us(since: str, until: str) -> Column:
    """Microseconds between two instants; null when one is missing, 0 when the clocks of two
    machines disagree."""
    us = F.unix_micros(F.col(until)) - F.unix_micros(F.col(since))
    return F.when(us >= 0, us).when(us < 0, F.lit(0).cast("bigint"))


def measures() -> dict[str, Column]:
    """Microseconds by measure; null where an attempt has none.

    pickup: ready until started. run: started until finished. e2e: submitted until finished, of the
    attempt that made the task DONE. retry_delay: due until started, of every run after the first.
    """
    return {
        "pickup": elapsed_us("ready_at", "started_at"),
        "run": elapsed_us("started_at", "finished_at"),
        "e2e": F.when(F.col("next_state") == "DONE", elapsed_us("submitted_at", "finished_at")),
        "retry_delay": F.when(F.col("attempt") > 1, elapsed_us("run_at", "started_at")),
    }
