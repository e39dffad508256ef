"""Gold: one table for each question about service and results, computed by pure functions from
DataFrames of whole days."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from fairlead.pipeline.definitions.windows import DAY, HOUR
from fairlead.pipeline.sorting import SORTER

KEYS_DAY = (SORTER, "day", "queue", "fairness_key")
"""Columns of a key's day; `day` in seconds since the epoch. Values carried from window to window
stay within the day."""


def window_start(instant: Expression, window_s: int | Expression, zone: str = "UTC") -> Expression:
    """Return the start of the window that contains an instant.

    A window of 86,400 seconds is a business day of `zone`, also one of 23 or 25 hours. Shorter
    windows follow each other from the start of the day, so that none crosses its end; the last one
    may be cut off there.
    """
    return F.timestamp_seconds(start_of(F.unix_seconds(instant), window_s, zone))


def start_of(seconds: Expression, window_s: int | Expression, zone: str = "UTC") -> Expression:
    """Return the start of the window that contains an instant, as `window_start`; both in seconds
    since the epoch."""
    length = window_s if isinstance(window_s, Expression) else F.lit(window_s)
    if zone == "UTC":
        return seconds - F.pmod(seconds, length)
    day = day_of(seconds, zone)
    # A day of 25 hours is one window too.
    return F.when(length == DAY, day).otherwise(seconds - F.pmod(seconds - day, length))


def day_of(seconds: Expression, zone: str = "UTC") -> Expression:
    """Return the start of the business day that contains an instant; both in seconds since the
    epoch."""
    if zone == "UTC":
        return seconds - F.pmod(seconds, F.lit(DAY))
    return F.unix_seconds(business_day(F.timestamp_seconds(seconds), zone))


def window_length(start: Expression, window_s: Expression, zone: str = "UTC") -> Expression:
    """Return the true length of a window in seconds: that of its business day, or up to its
    end."""
    if zone == "UTC":
        return window_s
    # 36 hours after its start, any day is over and the next one is not.
    next_day = day_of(day_of(start, zone) + 36 * HOUR, zone)
    return F.when(window_s == DAY, next_day - start).otherwise(F.least(window_s, next_day - start))


def business_day(instant: Expression, zone: str) -> Expression:
    """Return the first instant of the business day that contains an instant."""
    local_day = F.date_trunc("day", F.from_utc_timestamp(instant, zone))
    return F.to_utc_timestamp(local_day, zone)
