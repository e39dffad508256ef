"""The week ahead of a queue, hour by hour, and what it comes to. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import msgspec

from fairlead.pipeline.capacity.erlang import Work, slots_for
from fairlead.pipeline.capacity.forecast import HOURS, Forecast, forecast
from fairlead.pipeline.capacity.rates import MINUTES, Load, at_rank, hour_of_week
from fairlead.pipeline.schema import SCHEMA_VERSION


class Target(msgspec.Struct, frozen=True):
    """What is wanted: so large a part of the tasks waits no longer."""

    wait_us: int
    quantile: float


class QueuePlan(msgspec.Struct, frozen=True):
    """A queue's week in a line."""

    queue: str
    weeks: int
    tasks: float
    """That the week is forecast to bring."""
    peak_hour: int
    """Hour of the week that needs most slots."""
    peak_ratio: float
    """Arrivals of the busiest hour over those of the mean hour, of the forecast."""
    slots_peak: int
    """For the target, in the hour that needs most."""
    slots_median: int
    """In half of the hours no more."""
    slots_if_shifted: int
    """In the hour that needs most, if what may wait were left to quieter hours, as far as all hours
    become even: what shifting would save at best."""
    deferrable_share: float
    """Part of the worker time of that hour that may wait."""
    method: str
    held_out: int
    mase: float | None
    """Mean absolute error of the damped trend over that of the seasonal naive, on the weeks held
    out; above 1: worse."""
    skill: float | None
    """Part of the naive's pinball loss that the damped trend saves; below 0: it loses more."""


def week_ahead(
    queue: str, load: Load, end_hour: int, weeks: int, target: Target, hold_out: int
) -> tuple[QueuePlan, list[dict[str, Any]]]:
    """The plan and its rows of gold.capacity (without week_start), from `weeks` whole weeks before
    `end_hour`."""
    first = end_hour - weeks * HOURS
    told = forecast([load.week(first + HOURS * n) for n in range(weeks)], hold_out)
    rows, works, shifted = [], [], []
    for place in range(HOURS):
        hours = [first + place + HOURS * n for n in range(weeks)]
        row, work = _hour(load, hours, told, place, target)
        rows.append({"queue": queue, "weeks": weeks, **row})
        works.append(work)
        urgent = work._replace(rate=work.rate * (1 - row["deferrable_share"]))
        shifted.append(slots_for(urgent, target.wait_us / 1e6, target.quantile))
    slots = [row["slots_for_target"] for row in rows]
    peak = max(range(HOURS), key=lambda place: (slots[place], told.high[place]))
    mean = sum(told.middle) / HOURS
    plan = QueuePlan(
        queue=queue,
        weeks=weeks,
        tasks=sum(told.middle),
        peak_hour=rows[peak]["hour_of_week"],
        peak_ratio=max(told.middle) / mean if mean else 0.0,
        slots_peak=slots[peak],
        slots_median=sorted(slots)[HOURS // 2],
        slots_if_shifted=min(slots[peak], max(*shifted, _even(works, target))),
        deferrable_share=rows[peak]["deferrable_share"],
        method=told.method,
        held_out=told.held_out,
        mase=told.mase,
        skill=told.skill,
    )
    return plan, rows


def _even(works: list[Work], target: Target) -> int:
    """Slots for a week in which all hours have the same work."""
    rate, load = fmean(work.rate for work in works), fmean(work.load for work in works)
    if not load:
        return 0
    cv2_arrival, cv2_service = (fmean(work[field] for work in works) for field in (2, 3))
    return slots_for(
        Work(rate, load / rate, cv2_arrival, cv2_service), target.wait_us / 1e6, target.quantile
    )


def _hour(
    load: Load, hours: list[int], told: Forecast, place: int, target: Target
) -> tuple[dict[str, Any], Work]:
    week_hour = hour_of_week(hours[0])
    minutes, runs = load.minutes(hours), load.service(week_hour)
    high = told.high[place] / 3600
    work = Work(high, runs.mean_us / 1e6, load.cv2_arrival(hours), runs.cv2)
    slots = slots_for(work, target.wait_us / 1e6, target.quantile)
    row = {
        "hour_of_week": week_hour,
        **{f"lambda_p{round(100 * q)}": at_rank(minutes, q) / MINUTES for q in (0.5, 0.9, 0.99)},
        "mean_us": runs.mean_us,
        "cv2_arrival": work.cv2_arrival,
        "cv2_service": work.cv2_service,
        "deferrable_share": load.deferrable(week_hour),
        "forecast": told.middle[place] / 3600,
        "forecast_p90": high,
        "method": told.method,
        "held_out": told.held_out,
        "pinball_loss": told.loss[place] if told.loss else None,
        "pinball_naive": told.naive_loss[place] if told.naive_loss else None,
        "wait_us": target.wait_us,
        "quantile": target.quantile,
        "slots_for_target": slots,
        "utilisation": work.load / slots if slots else 0.0,
        "schema_version": SCHEMA_VERSION,
    }
    return row, work
