"""Forecast of next week's arrivals from past weeks: the shape of the week, times a level with a
damped trend. Pure.

The shape is the share of a week's tasks in each hour; recent weeks count more. The level is the
week's total by Holt's method with a damped trend (Gardner and McKenzie 1985), in which a trend
continues but shrinks each week. The forecast is compared with the seasonal naive method (the value
of the same hour a week ago) on weeks held out from both, and the better method is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, sqrt
from statistics import NormalDist, fmean
from typing import NamedTuple

HOURS = 168
"""Hours in a week."""

HALF_LIFE_WEEKS = 2.0
"""Age in weeks at which a week counts half as much for the shape."""

LEVEL, TREND, DAMPING = 0.5, 0.3, 0.8
"""Weights of Holt's method: share of a forecast error that is added to the level, share of a change
of the level that is added to the trend, and share of the trend that remains after a week."""

QUANTILES = (0.5, 0.9)
"""Quantiles that are forecast and judged."""

DAMPED, NAIVE = "damped trend", "seasonal naive"

_ROUNDING = 1e-6
"""Difference, in tasks, below which two sums are treated as equal."""

Week = Sequence[float]
"""Tasks in each hour of the week; all weeks of a series begin at the same hour."""

Point = Callable[[Sequence[Week]], list[float]]


class Forecast(NamedTuple):
    """Forecast of one week by hour, with the error of its method on held-out weeks."""

    middle: list[float]
    """Tasks in each hour, as a median."""
    high: list[float]
    """Tasks in each hour, as the 90th percentile."""
    method: str
    """Method used: DAMPED or NAIVE."""
    held_out: int
    """Weeks on which the methods were judged; 0 when the history is too short, and NAIVE is used.
    """
    loss: list[float]
    """Pinball loss of the damped trend by hour, in tasks: mean over QUANTILES and the held-out
    weeks; empty if not judged."""
    naive_loss: list[float]
    """Pinball loss of the seasonal naive method by hour, in tasks; empty if not judged."""
    mase: float | None
    """Mean absolute error of the damped trend divided by that of the naive method on the held-out
    weeks; above 1, the trend was worse. None if not judged, or if the naive method had no error."""

    @property
    def skill(self) -> float | None:
        """Return the share of the naive method's pinball loss that the damped trend saves; negative
        when its loss is larger."""
        total = sum(self.naive_loss)
        return 1 - sum(self.loss) / total if total else None


def forecast(weeks: Sequence[Week], hold_out: int = 2) -> Forecast:
    """Return the forecast of the week after `weeks` (oldest first).

    The methods are judged on the last `hold_out` weeks that have at least two weeks before them.
    Raise ValueError for no week, or for a week without exactly HOURS hours.
    """
    if not weeks or any(len(week) != HOURS for week in weeks):
        raise ValueError(f"weeks must hold at least one week, each with {HOURS} hours")
    judged = max(0, min(hold_out, len(weeks) - 2))
    loss, naive_loss, errors, naive_errors = ([0.0] * HOURS for _ in range(4))
    for week in range(len(weeks) - judged, len(weeks)):
        past, truth = weeks[:week], weeks[week]
        for point, losses, absolute in ((damped, loss, errors), (naive, naive_loss, naive_errors)):
            for quantile, guess in zip(QUANTILES, _quantiles(point, past), strict=True):
                for hour, (predicted, actual) in enumerate(zip(guess, truth, strict=True)):
                    losses[hour] += pinball(predicted, actual, quantile) / len(QUANTILES) / judged
            for hour, (predicted, actual) in enumerate(zip(point(past), truth, strict=True)):
                absolute[hour] += abs(predicted - actual)
    is_better = judged > 0 and sum(loss) <= sum(naive_loss) + _ROUNDING
    middle, high = _quantiles(damped if is_better else naive, weeks)
    return Forecast(
        middle,
        high,
        DAMPED if is_better else NAIVE,
        judged,
        loss if judged else [],
        naive_loss if judged else [],
        sum(errors) / sum(naive_errors) if sum(naive_errors) else None,
    )


def naive(weeks: Sequence[Week]) -> list[float]:
    """Return the last week unchanged."""
    return list(weeks[-1])


def damped(weeks: Sequence[Week]) -> list[float]:
    """Return the shape of the week times its expected total."""
    totals = [sum(week) for week in weeks]
    level, trend = totals[0], 0.0
    for total in totals[1:]:
        before = level
        level = LEVEL * total + (1 - LEVEL) * (level + DAMPING * trend)
        trend = TREND * (level - before) + (1 - TREND) * DAMPING * trend
    total = max(0.0, level + DAMPING * trend)
    counts = [0.5 ** ((len(weeks) - 1 - n) / HALF_LIFE_WEEKS) for n in range(len(weeks))]
    weighed = sum(count * each for count, each in zip(counts, totals, strict=True))
    if not weighed:
        return [0.0] * HOURS
    return [
        total * sum(count * week[hour] for count, week in zip(counts, weeks, strict=True)) / weighed
        for hour in range(HOURS)
    ]


def pinball(predicted: float, actual: float, quantile: float) -> float:
    """Return the loss of a predicted quantile (Koenker): each task above the prediction costs
    `quantile`, each task below costs 1 - `quantile`."""
    return max(quantile * (actual - predicted), (quantile - 1) * (actual - predicted))


def _quantiles(point: Point, weeks: Sequence[Week]) -> list[list[float]]:
    """Return the prediction of each quantile: the point forecast plus a quantile of the past errors
    of its method. Without past errors, arrivals are assumed to be Poisson."""
    predicted = point(weeks)
    mean = fmean(predicted)
    wrong = sorted(
        (was - guess) / _scale(guess, fmean(weeks[n - 1]))
        for n in range(1, len(weeks))
        for guess, was in zip(point(weeks[:n]), weeks[n], strict=True)
    )
    if not wrong:
        normal = NormalDist()
        return [
            [max(0.0, each + normal.inv_cdf(q) * sqrt(each)) for each in predicted]
            for q in QUANTILES
        ]
    moves = [wrong[max(0, ceil(q * len(wrong)) - 1)] for q in QUANTILES]
    return [[max(0.0, each + move * _scale(each, mean)) for each in predicted] for move in moves]


def _scale(guess: float, mean: float) -> float:
    """Return the unit in which the error of an hour is measured: the mean hour; for a busier hour,
    the geometric mean of its forecast and the mean hour. Quiet hours have larger relative errors.
    """
    return sqrt(max(guess, mean, 1.0) * max(mean, 1.0))
