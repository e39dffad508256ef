"""Evenness of the service of each queue."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.facts.service import MOST_QUEUES, QUEUES_DRAWN
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS


def over_time(tables: Frames, period: Period, queues: Sequence[str]) -> pd.DataFrame:
    """Return evenness in steps of the period.

    Columns: at, queue, jain (mean of the windows; null if no window could be judged), jain_least,
    n_keys and starved_keys (greatest of the windows). At most 202 rows a queue.
    """
    most = QUEUES_DRAWN * (MOST_POINTS + 2)
    return period.frame(tables, "fairness_over_time", most, queues=list(queues))


def by_queue(tables: Frames, period: Period) -> pd.DataFrame:
    """Return evenness by queue.

    Columns: queue, windows, judged (windows with two backlogged keys), jain_median, jain_least,
    within_bound (number of judged windows), starved_windows, starved_keys (greatest), noisy_key and
    noisy_score (greatest of all windows), max_lag_us with max_lag_key. At most 1000 rows.
    """
    return period.frame(tables, "fairness_by_queue", MOST_QUEUES, most=MOST_QUEUES)
