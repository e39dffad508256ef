"""Service and entitlement: by queue, by key, and over time."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS

MOST_QUEUES = 1000
"""Maximum number of queues listed. Queues are few, because they are named in code."""

QUEUES_DRAWN = 4
"""Number of queues with pictures of their own: those with most worker time."""

_POINTS = MOST_POINTS + 2
"""Maximum number of steps of a period, whose bounds are rounded outwards."""


def queues(tables: Frames, period: Period) -> pd.DataFrame:
    """Return the queues, most worker time first.

    Columns: queue, busy_us, started, done, failed, wasted_us. At most 1000 rows.
    """
    return period.frame(tables, "queues", MOST_QUEUES, most=MOST_QUEUES)


def keys(tables: Frames, period: Period, queues: Sequence[str], top: int) -> pd.DataFrame:
    """Return the top keys of these queues by worker time or by lag, and the rest of each queue as
    one row, by queue and rank.

    Columns: queue, rank (from 1; null for the rest), fairness_key (null for the rest), keys (number
    of keys in the row), weight (the latest), busy_us, entitled_us, lag_us (greatest of any window),
    lag_at. At most (top + 1) rows a queue.
    """
    most = QUEUES_DRAWN * (top + 1)
    return period.frame(tables, "keys", most, queues=list(queues), top=top)


def over_time(tables: Frames, period: Period, keys: pd.DataFrame) -> pd.DataFrame:
    """Return the service of `keys` in steps of the period.

    Columns: at, queue, rank (null for the rest), busy_us, entitled_us, lag_us (the value farthest
    from 0 in the step). Steps in which a key neither ran nor waited have no row. At most 202 rows
    for each row of `keys`.
    """
    shown = [
        {"queue": row.queue, "fairness_key": row.fairness_key, "rank": int(row.rank)}
        for row in keys.dropna(subset=["rank"]).itertuples()
    ]
    return period.frame(tables, "service_over_time", _POINTS * len(keys), shown=shown)
