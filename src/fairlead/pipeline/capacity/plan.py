"""Capacity plan of one queue: the week ahead hour by hour, and its summary. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import msgspec

from fairlead.pipeline.capacity.erlang import Work, slots_for
from fairlead.pipeline.capacity.forecast import HOURS, Forecast, at_rank, forecast
from fairlead.pipeline.capacity.rates import MINUTES, Load, hour_of_week
from fairlead.pipeline.schema import SCHEMA_VERSION


class Target(msgspec.Struct, frozen=True):
    """Target for waiting times: the share `quantile` of the tasks waits at most `wait_us`
    microseconds."""

    wait_us: int
    quantile: float


class TooYoung(msgspec.Struct, frozen=True):
    """A queue without a plan, because it has less than one whole week of history."""

    queue: str
    hours: int
    """Hours since its first arrival."""
    missing_hours: int
    """Hours until there is a first plan."""


class QueuePlan(msgspec.Struct, frozen=True):
    """Summary of a queue's week."""

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
    """Mean absolute error of the damped trend divided by that of the seasonal naive method on the
    held-out weeks; above 1, the trend was worse."""
    skill: float | None
    """Share of the naive method's pinball loss that the damped trend saves; negative when its loss
    is larger."""
    covered: float | None
    """Share of the held-out hours that had at most the 90th percentile that was forecast for them;
    below 0.9, plans were too small."""
    quiet_weeks: int
    """Weeks left out of the forecast, because the queue had hardly a task in them."""


def week_ahead(
    queue: str, load: Load, end_hour: int, weeks: int, target: Target, hold_out: int
) -> tuple[QueuePlan | TooYoung, list[dict[str, Any]]]:
    """Return the plan and its rows of gold.capacity (without week_start), from at most `weeks`
    whole weeks before `end_hour`: those since the queue's first arrival. Hours before it are not
    known, and not zero."""
    known = end_hour - load.known_from(end_hour - weeks * HOURS)
    weeks = known // HOURS
    if not weeks:
        return TooYoung(queue, known, HOURS - known), []
    first = end_hour - weeks * HOURS
    prediction = forecast([load.week(first + HOURS * n) for n in range(weeks)], hold_out)
    rows, works, shifted = [], [], []
    for index in range(HOURS):
        hours = [first + index + HOURS * n for n in range(weeks)]
        row, work = _hour(load, hours, prediction, index, target)
        rows.append({"queue": queue, "weeks": weeks, **row})
        works.append(work)
        urgent = work._replace(rate=work.rate * (1 - row["deferrable_share"]))
        shifted.append(slots_for(urgent, target.wait_us / 1e6, target.quantile))
    slots = [row["slots_for_target"] for row in rows]
    peak = max(range(HOURS), key=lambda index: (slots[index], prediction.high[index]))
    mean = sum(prediction.middle) / HOURS
    plan = QueuePlan(
        queue=queue,
        weeks=weeks,
        tasks=sum(prediction.middle),
        peak_hour=rows[peak]["hour_of_week"],
        peak_ratio=max(prediction.middle) / mean if mean else 0.0,
        slots_peak=slots[peak],
        slots_median=sorted(slots)[HOURS // 2],
        slots_if_shifted=min(slots[peak], max(*shifted, _even(works, target))),
        deferrable_share=rows[peak]["deferrable_share"],
        method=prediction.method,
        held_out=prediction.held_out,
        mase=prediction.mase,
        skill=prediction.skill,
        covered=prediction.covered,
        quiet_weeks=prediction.quiet,
    )
    return plan, rows


def _even(works: list[Work], target: Target) -> int:
    """Return the slots for a week in which all hours have the same work."""
    rate, load = fmean(work.rate for work in works), fmean(work.load for work in works)
    if not load:
        return 0
    cv2_arrival, cv2_service = (fmean(work[field] for work in works) for field in (2, 3))
    return slots_for(
        Work(rate, load / rate, cv2_arrival, cv2_service), target.wait_us / 1e6, target.quantile
    )


def _hour(
    load: Load, hours: list[int], prediction: Forecast, index: int, target: Target
) -> tuple[dict[str, Any], Work]:
    week_hour = hour_of_week(hours[0])
    minutes, runs = load.minutes(hours), load.service(week_hour)
    high = prediction.high[index] / 3600
    work = Work(high, runs.mean_us / 1e6, load.cv2_arrival(hours), runs.cv2)
    slots = slots_for(work, target.wait_us / 1e6, target.quantile)
    row = {
        "hour_of_week": week_hour,
        **{f"lambda_p{round(100 * q)}": at_rank(minutes, q) / MINUTES for q in (0.5, 0.9, 0.99)},
        "mean_us": runs.mean_us,
        "cv2_arrival": work.cv2_arrival,
        "cv2_service": work.cv2_service,
        "deferrable_share": load.deferrable(week_hour),
        "forecast": prediction.middle[index] / 3600,
        "forecast_p90": high,
        "method": prediction.method,
        "held_out": prediction.held_out,
        "pinball_loss": prediction.loss[index] if prediction.loss else None,
        "pinball_naive": prediction.naive_loss[index] if prediction.naive_loss else None,
        "wait_us": target.wait_us,
        "quantile": target.quantile,
        "slots_for_target": slots,
        "utilisation": work.load / slots if slots else 0.0,
        "schema_version": SCHEMA_VERSION,
    }
    return row, work
