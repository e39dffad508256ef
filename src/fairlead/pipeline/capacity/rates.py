"""Arrivals and run times by hour of the week, read from the tables by statements of rates.sql."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from fairlead.backends.sql.sql_file import load
from fairlead.pipeline.capacity.forecast import HOURS
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.latency import GROWTH, LATENCY_HIST
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.gold.capacity import FIRST_DEFERRABLE_PRIORITY
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.parts import HOUR_US, dates_of, hours_between

_STATEMENTS = load("rates.sql", __package__)

MINUTES = 60
LEAST_RUNS = 30
"""Least number of runs from which the variation of an hour of the week is measured; for an hour
with fewer runs, the runs of all hours are used. Also the least number of arrivals for
`cv2_arrival`."""

_MONDAY = 4 * 24
"""Hours from Thursday, 1 January 1970, to the first Monday."""


class RunTimeSums(NamedTuple):
    """Sums over run times: number, total in microseconds, and total of the squares."""

    n: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, other: RunTimeSums) -> RunTimeSums:
        """Return the sums over both."""
        return RunTimeSums(*(one + two for one, two in zip(self, other, strict=True)))

    @property
    def mean_us(self) -> float:
        """Return the mean run time in microseconds; 0 for no runs."""
        return self.total / self.n if self.n else 0.0

    @property
    def cv2(self) -> float:
        """Return the squared coefficient of variation; 1 (exponential) for no runs."""
        return max(0.0, self.squares / self.n / self.mean_us**2 - 1) if self.total else 1.0


@dataclass
class Load:
    """Arrivals and work of one queue. Hours are counted from the epoch."""

    arrived: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Tasks that became ready in each minute, by hour."""
    runs: dict[int, RunTimeSums] = field(default_factory=lambda: defaultdict(RunTimeSums))
    """Run times, by hour of the week."""
    work_us: Counter[int] = field(default_factory=Counter)
    """Worker time in microseconds of the tasks submitted in each hour of the week."""
    deferrable_us: Counter[int] = field(default_factory=Counter)
    """Part of `work_us` that belongs to deferrable tasks, whose priority is at least
    FIRST_DEFERRABLE_PRIORITY, by hour of the week."""

    def known_from(self, first_hour: int) -> int:
        """Return the first hour from `first_hour` on in which the queue may have had arrivals that
        are known: the hour of its first arrival, because a queue is not known to be older."""
        return max(first_hour, min(self.arrived, default=first_hour))

    def week(self, first_hour: int) -> list[float]:
        """Return the tasks in each hour of the week that begins at `first_hour`."""
        return [
            float(sum(self.arrived[hour].values())) if hour in self.arrived else 0.0
            for hour in range(first_hour, first_hour + HOURS)
        ]

    def minutes(self, hours: Sequence[int]) -> list[int]:
        """Return the tasks in each minute of these hours."""
        return [
            self.arrived[hour][minute] if hour in self.arrived else 0
            for hour in hours
            for minute in range(MINUTES)
        ]

    def cv2_arrival(self, hours: Sequence[int]) -> float:
        """Return the index of dispersion of the arrivals per minute; 1 (Poisson) when too few tasks
        arrived.

        The index is the variance around the mean of each hour, divided by that mean. Over many
        minutes it approaches the squared coefficient of variation of the times between arrivals.
        """
        variance = mean = 0.0
        for hour in hours:
            counts = self.minutes([hour])
            middle = fmean(counts)
            mean += middle
            variance += sum((count - middle) ** 2 for count in counts) / (MINUTES - 1)
        return variance / mean if mean * MINUTES >= LEAST_RUNS else 1.0

    def service(self, hour_of_week: int) -> RunTimeSums:
        """Return the run times of an hour of the week, or of all hours when this hour has too few
        runs."""
        own = self.runs.get(hour_of_week, RunTimeSums())
        if own.n >= LEAST_RUNS:
            return own
        together = RunTimeSums()
        for runs in self.runs.values():
            together = together.plus(runs)
        return together

    def deferrable(self, hour_of_week: int) -> float:
        """Return the share of the worker time that is deferrable, 0 to 1."""
        total = self.work_us[hour_of_week]
        return self.deferrable_us[hour_of_week] / total if total else 0.0


def hour_of_week(hour: int) -> int:
    """Return the hour of the week (0: Monday 00:00 UTC, to 167) of an hour since the epoch."""
    return (hour - _MONDAY) % HOURS


def gather(tables: SmallTables, first_hour: int, end_hour: int) -> dict[str, Load]:
    """Return the load of each queue in [first_hour, end_hour), from silver.backlog,
    gold.latency_hist and silver.tasks. Arrivals are read from a week before that on, because they
    tell which queues are older."""
    found: dict[str, Load] = defaultdict(Load)
    names = hours_between((first_hour - HOURS) * HOUR_US, (end_hour - 1) * HOUR_US)
    hours = names[HOURS:]
    parts = {BACKLOG: names, LATENCY_HIST: dates_of(hours), TASKS: hours}.__getitem__
    for row in tables.select(_STATEMENTS["arrivals"], parts):
        found[row["queue"]].arrived[row["hour"]][row["minute"]] = row["tasks"]
    bounds = {"first": first_hour, "last": end_hour - 1}
    for row in tables.select(_STATEMENTS["runs"], parts, growth=GROWTH, **bounds):
        runs, hour = found[row["queue"]].runs, hour_of_week(row["hour"])
        runs[hour] = runs[hour].plus(RunTimeSums(row["n"], row["total"], row["squares"]))
    for row in tables.select(_STATEMENTS["work"], parts, deferrable=FIRST_DEFERRABLE_PRIORITY):
        load, hour = found[row["queue"]], hour_of_week(row["hour"])
        load.work_us[hour] += row["work_us"]
        load.deferrable_us[hour] += row["deferrable_us"]
    return dict(found)
