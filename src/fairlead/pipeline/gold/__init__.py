"""Gold: one table for each question about who got what and how it went; pure functions of frames
that cover whole days."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from fairlead.pipeline.schema import Column
from fairlead.pipeline.sorting import SORTER

MINUTE, HOUR, DAY = 60, 3600, 86_400
"""Seconds."""

WINDOWS = (MINUTE, HOUR, DAY)
"""Window sizes. A day is a whole number of each, so that a window never reaches over midnight
(UTC)."""

KEYS_DAY = (SORTER, "day", "queue", "fairness_key")
"""A key's day, `day` in seconds since 1970: what is carried from window to window stays in it."""

ALL = "*"
"""All queues, names or keys together."""

OF_WINDOW = (
    Column("window_start", "timestamp", "start of the window"),
    Column("window_s", "int", "its length in seconds: 60, 3600 or 86400"),
    Column("queue", "string", "the queue"),
)
"""First columns of the tables that tell of a queue window by window."""


def window_start(instant: Expression, window_s: int | Expression) -> Expression:
    """The start of the window an instant lies in; windows of `window_s` seconds are counted from
    1970."""
    seconds = F.unix_seconds(instant)
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(window_s)))


def day_of(seconds: Expression) -> Expression:
    """Where the day begins that an instant lies in; both in seconds since 1970."""
    return seconds - F.pmod(seconds, F.lit(DAY))
