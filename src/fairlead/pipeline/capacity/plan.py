"""Capacity plan of one queue: the week ahead hour by hour, and its summary. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from fairlead.errors import ConfigurationError
from fairlead.pipeline.capacity.erlang import Work, slots_for
from fairlead.pipeline.capacity.forecast import HOURS, Floats, forecast

MINUTES = 60
LEAST_RUNS = 30
"""Least number of runs from which the variation of an hour of the week is measured; for an hour
with fewer runs, the runs of all hours are used. Also the least number of arrivals for the variation
of the arrivals."""

MONDAY = 4 * 24
"""Hours from Thursday, 1 January 1970, to the first Monday."""


class Target(msgspec.Struct, frozen=True):
    """Target for waiting times: the share `quantile` of the tasks waits at most `wait_us`
    microseconds. Raises ConfigurationError for a target that no plan can meet."""

    wait_us: int
    quantile: float

    def __post_init__(self) -> None:
        if not (0 < self.quantile < 1 and self.wait_us >= 0):
            raise ConfigurationError(
                f"quantile is {self.quantile} and wait is {self.wait_us} us; quantile must be"
                " between 0 and 1, such as 0.95, and the wait at least 0"
            )

    def slots(self, work: Work) -> int:
        """Return the fewest slots that meet the target."""
        return slots_for(work, self.wait_us / 1e6, self.quantile)


@dataclass
class Load:
    """Arrivals and work of one queue."""

    arrived: dict[int, int] = field(default_factory=dict)
    """Tasks that became ready in each minute since the epoch that had any."""
    served: Floats = field(default_factory=lambda: np.zeros((HOURS, 5)))
    """Row for each hour of the week, from Monday 00:00 UTC: number of runs, sum of the run times in
    microseconds, sum of their squares, worker time of the tasks submitted in the hour, and the part
    of deferrable tasks in it."""

    def minutes(self, first_hour: int, weeks: int) -> Floats:
        """Return the tasks that became ready from `first_hour` (since the epoch) on, by week, hour
        and minute."""
        counts = np.zeros(weeks * HOURS * MINUTES)
        for minute, tasks in self.arrived.items():
            if minute >= first_hour * MINUTES:
                counts[minute - first_hour * MINUTES] = tasks
        return counts.reshape(weeks, HOURS, MINUTES)


class TooYoung(msgspec.Struct, frozen=True):
    """A queue without a plan, because it has less than one whole week of history."""

    queue: str
    hours: int
    """Hours since its first arrival."""
    missing_hours: int
    """Hours until there is a first plan."""


class QueuePlan(msgspec.Struct, frozen=True):
    """Summary of a queue's week. `forecast.Forecast` describes the fields without a text."""

    queue: str
    weeks: int
    tasks: float
    """Tasks forecast for the week."""
    peak_hour: int
    """Hour of the week that needs most slots."""
    peak_ratio: float
    """Forecast arrivals of the busiest hour divided by those of the mean hour."""
    slots_peak: int
    """Slots that meet the target in the hour that needs most."""
    slots_median: int
    """Median over the hours of the slots that meet the target."""
    slots_if_shifted: int
    """Slots for the hour that needs most, if deferrable work moved to quieter hours until all hours
    were even: the best that shifting can reach."""
    deferrable_share: float
    """Share of the peak hour's worker time that is deferrable."""
    method: str
    held_out: int
    mase: float | None
    skill: float | None
    covered: float | None
    quiet_weeks: int
    """Weeks left out of the forecast, because the queue had hardly a task in them."""


def week_ahead(
    queue: str, load: Load, end_hour: int, weeks: int, target: Target, hold_out: int
) -> tuple[QueuePlan, pd.DataFrame] | TooYoung:
    """Return the plan and its rows of gold.capacity (without week_start), from at most `weeks`
    whole weeks before `end_hour`: those since the queue's first arrival. Hours before it are not
    known, and not zero, because the queue is not known to be older."""
    known = min(weeks * HOURS, end_hour - min(load.arrived, default=0) // MINUTES)
    weeks = known // HOURS
    if not weeks:
        return TooYoung(queue, known, HOURS - known)
    first = end_hour - weeks * HOURS
    minutes = load.minutes(first, weeks)
    found = forecast(minutes.sum(axis=2), hold_out)
    hours = (np.arange(first, first + HOURS) - MONDAY) % HOURS
    mean_us, cv2_service = _service(load, hours)
    *_, work_us, deferrable_us = load.served[hours].T
    deferrable = np.divide(deferrable_us, work_us, out=np.zeros(HOURS), where=work_us > 0)
    cv2_arrival, high = _cv2_arrival(minutes), found.high / 3600
    of_hours = np.column_stack([high, mean_us / 1e6, cv2_arrival, cv2_service])
    works = [Work(*each) for each in of_hours.tolist()]
    slots = [target.slots(work) for work in works]
    urgent = [
        target.slots(work._replace(rate=work.rate * (1 - share)))
        for work, share in zip(works, deferrable.tolist(), strict=True)
    ]
    rate, load_of_hour = fmean(work.rate for work in works), fmean(work.load for work in works)
    even = Work(rate, load_of_hour / (rate or 1), cv2_arrival.mean(), cv2_service.mean())
    peak = max(range(HOURS), key=lambda index: (slots[index], high[index]))
    p50, p90, p99 = (
        np.quantile(minutes, (0.5, 0.9, 0.99), axis=(0, 2), method="inverted_cdf") / MINUTES
    )
    rows = pd.DataFrame(
        {
            "queue": queue,
            "weeks": weeks,
            "hour_of_week": hours,
            "lambda_p50": p50,
            "lambda_p90": p90,
            "lambda_p99": p99,
            "mean_us": mean_us,
            "cv2_arrival": cv2_arrival,
            "cv2_service": cv2_service,
            "deferrable_share": deferrable,
            "forecast": found.middle / 3600,
            "forecast_p90": high,
            "method": found.method,
            "held_out": found.held_out,
            "pinball_loss": found.loss,
            "pinball_naive": found.naive_loss,
            "wait_us": target.wait_us,
            "quantile": target.quantile,
            "slots_for_target": slots,
            "utilisation": [work.load / max(1, n) for work, n in zip(works, slots, strict=True)],
        }
    )
    plan = QueuePlan(
        queue=queue,
        weeks=weeks,
        tasks=float(found.middle.sum()),
        peak_hour=int(hours[peak]),
        peak_ratio=float(found.middle.max() / (found.middle.mean() or 1)),
        slots_peak=slots[peak],
        slots_median=sorted(slots)[HOURS // 2],
        slots_if_shifted=min(slots[peak], max(*urgent, target.slots(even))),
        deferrable_share=float(deferrable[peak]),
        method=found.method,
        held_out=found.held_out,
        mase=found.mase,
        skill=found.skill,
        covered=found.covered,
        quiet_weeks=found.quiet,
    )
    return plan, rows


def _cv2_arrival(minutes: Floats) -> Floats:
    """Return, by hour of the week, the index of dispersion of the arrivals per minute; 1 (Poisson)
    when too few tasks arrived.

    The index is the variance around the mean of each hour, divided by that mean. Over many minutes
    it approaches the squared coefficient of variation of the times between arrivals.
    """
    mean, variance = minutes.mean(2).sum(axis=0), minutes.var(2, ddof=1).sum(axis=0)
    cv2 = np.ones(HOURS)
    np.divide(variance, mean, out=cv2, where=mean * MINUTES >= LEAST_RUNS)
    return cv2


def _service(load: Load, hours: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the mean run time in microseconds, 0 without runs, and the squared coefficient of
    variation of the run times, 1 (exponential) without runs, by hour."""
    runs = load.served[:, :3]
    is_enough = runs[:, :1] >= LEAST_RUNS
    n, total, squares = np.where(is_enough, runs, runs.sum(axis=0))[hours].T
    mean_us = np.divide(total, n, out=np.zeros(HOURS), where=n > 0)
    cv2 = np.divide(squares * n, total**2, out=np.full(HOURS, 2.0), where=total > 0) - 1
    return mean_us, cv2.clip(0)
