"""Gold: one table for each question about service and results, computed by pure functions from
DataFrames of whole days."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from fairlead.pipeline.definitions.windows import DAY
from fairlead.pipeline.sorting import SORTER

KEYS_DAY = (SORTER, "day", "queue", "fairness_key")
"""Columns of a key's day; `day` in seconds since the epoch. Values carried from window to window
stay within the day."""


def window_start(instant: Expression, window_s: int | Expression) -> Expression:
    """Return the start of the window that contains an instant. Windows of `window_s` seconds are
    aligned to the epoch."""
    seconds = F.unix_seconds(instant)
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(window_s)))


def day_of(seconds: Expression) -> Expression:
    """Return the start of the day that contains an instant; both in seconds since the epoch."""
    return seconds - F.pmod(seconds, F.lit(DAY))


def business_day(instant: Expression, zone: str) -> Expression:
    """Return the first instant of the business day that contains an instant."""
    local_day = F.date_trunc("day", F.from_utc_timestamp(instant, zone))
    return F.to_utc_timestamp(local_day, zone)
