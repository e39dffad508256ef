"""Waits: over time, by name, by hour of the week, and under load."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fairlead.clock import MICROS, to_micros
from fairlead.pipeline.definitions.latency import GROWTH
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.facts.service import QUEUES_DRAWN
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS

HOUR_S = 3600
HOURS_OF_WEEK = 168
_FIRST_MONDAY_S = 4 * 86_400
"""1970-01-05, in seconds since the epoch."""

LOAD_BINS = 20
SLOWDOWN_STEP = 1.1
"""Ratio of neighbouring bins of the slowdown; bin b starts at SLOWDOWN_STEP ** b."""
SLOWDOWN_BINS = 110
"""Last bin of the slowdown, which has no upper bound: 1.1 ** 110 is about 36,000."""


def pickup_over_time(tables: Frames, period: Period, queues: Sequence[str]) -> pd.DataFrame:
    """Return pickup in steps of at least an hour.

    Columns: at, queue, n, p50, p99, p999 (microseconds). At most 202 rows a queue.
    """
    most = QUEUES_DRAWN * (MOST_POINTS + 2)
    return period.frame(
        tables, "pickup_over_time", most, HOUR_S, queues=list(queues), growth=GROWTH
    )


def by_name(tables: Frames, period: Period, top: int) -> pd.DataFrame:
    """Return pickup and run times by name over the whole period, longest pickup p99 first.

    Columns: queue, name, n; p50, p99, p999, max_us of pickup; run_p50, run_p99. All in
    microseconds. At most `top` rows.
    """
    return period.frame(tables, "waits_by_name", top, top=top, growth=GROWTH)


def by_hour_of_week(tables: Frames, period: Period) -> pd.DataFrame:
    """Return load and pickup by hour of the week, all queues together.

    Columns: hour (0: Monday 00:00 UTC, to 167), busy_us (sum over all such hours of the period), n,
    p50 and p99 of pickup in microseconds (null if no run started). At most 168 rows.
    """
    monday = _FIRST_MONDAY_S * MICROS
    return period.frame(
        tables, "by_hour_of_week", HOURS_OF_WEEK, first_monday=monday, growth=GROWTH
    )


def slowdown_by_load(tables: Frames, period: Period) -> pd.DataFrame:
    """Return the number of finished tasks by slowdown and by load of their queue in the minute in
    which they became ready.

    Columns: load (bin 0 to 19, each a twentieth of the queue's busiest minute), slowdown (bin, see
    SLOWDOWN_STEP), n. At most 20 x 111 rows. Source: Feitelson, Workload Modeling for Computer
    Systems Performance Evaluation, 2015, which judges a system under each load separately.
    """
    return period.frame(
        tables,
        "slowdown_by_load",
        LOAD_BINS * (SLOWDOWN_BINS + 1),
        load_bins=LOAD_BINS,
        slowdown_step=SLOWDOWN_STEP,
        slowdown_bins=SLOWDOWN_BINS,
    )


def times_seen(period: Period) -> list[int]:
    """Return how often the period contains each hour of the week."""
    first, last = (
        (to_micros(at) // MICROS - _FIRST_MONDAY_S) // HOUR_S for at in (period.since, period.until)
    )
    whole_weeks, rest = divmod(last - first, HOURS_OF_WEEK)
    return [whole_weeks + ((hour - first) % HOURS_OF_WEEK < rest) for hour in range(HOURS_OF_WEEK)]


def slowdown_percentiles(tasks: pd.DataFrame, bands: int = LOAD_BINS) -> pd.DataFrame:
    """Return percentiles of the bins of `slowdown_by_load` in `bands` bands of load.

    Columns: load (band, from 0), n, p50, p90, p99 (bounded slowdown, the geometric middle of its
    bin: at most 5 % off).
    """
    band = (tasks["load"] * bands // LOAD_BINS).rename("band")
    bins = tasks.groupby([band, "slowdown"])["n"].sum().reset_index()
    total = bins.groupby("band")["n"].transform("sum")
    up_to = bins.groupby("band")["n"].cumsum()
    middle = SLOWDOWN_STEP ** (bins["slowdown"] + 0.5)
    # Show the first bin as 1, the slowdown of most tasks that did not wait.
    value = middle.where(bins["slowdown"] > 0, 1.0)
    columns = {"n": bins.groupby("band")["n"].sum()}
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        columns[name] = value[up_to >= part * total].groupby(bins["band"]).min()
    return bins.groupby("band")[[]].first().assign(**columns).rename_axis("load").reset_index()
