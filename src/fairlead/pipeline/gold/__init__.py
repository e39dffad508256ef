"""Gold: one table for each question about service and results, computed by pure functions from
DataFrames of whole days."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from fairlead.pipeline.sorting import SORTER

KEYS_DAY = (SORTER, "day", "queue", "fairness_key")
"""Columns of a key's day; `day` in seconds since the epoch. Values carried from window to window
stay within the day."""


def window_start(instant: Expression, window_s: int | Expression) -> Expression:
    """Return the start of the window that contains an instant. Windows follow each other from the
    start of the day (UTC), so that none crosses its end."""
    return F.timestamp_seconds(start_of(F.unix_seconds(instant), window_s))


def start_of(seconds: Expression, window_s: int | Expression) -> Expression:
    """Return the start of the window that contains an instant, as `window_start`; both in seconds
    since the epoch."""
    length = window_s if isinstance(window_s, Expression) else F.lit(window_s)
    return seconds - F.pmod(seconds, length)
