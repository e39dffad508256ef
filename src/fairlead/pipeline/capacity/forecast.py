"""Next week's arrivals from those of past weeks: the week's shape, times a level with a damped
trend. Pure.

The shape is what part of a week falls into each of its hours, recent weeks counting more. The level
is the week's total by Holt's method with a damped trend (Gardner and McKenzie 1985): a trend goes
on, but less each week. It is held against the seasonal naive (the same hour a week ago) on weeks it
has not seen; whichever was better there is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, sqrt
from statistics import NormalDist, fmean
from typing import NamedTuple

HOURS = 168
"""Of a week."""

HALF_LIFE_WEEKS = 2.0
"""A week so long ago counts half as much for the shape."""

LEVEL, TREND, DAMPING = 0.5, 0.3, 0.8
"""How much of a surprise is taken for the level, how much of a change of it for the trend, what is
left of that a week on."""

QUANTILES = (0.5, 0.9)
"""Those that are forecast and judged."""

DAMPED, NAIVE = "damped trend", "seasonal naive"

_ROUNDING = 1e-6
"""Tasks: sums that differ by less are the same."""

Week = Sequence[float]
"""Tasks in each of its hours; all weeks of a series begin at the same hour."""

Point = Callable[[Sequence[Week]], list[float]]


class Forecast(NamedTuple):
    """A week ahead, by hour, and how good the method was on weeks it had not seen."""

    middle: list[float]
    """Tasks in an hour that half of the hours do not exceed."""
    high: list[float]
    """That nine of ten do not exceed."""
    method: str
    """Which of the two it is."""
    held_out: int
    """Weeks on which the methods were judged; 0: too short a history, it is the seasonal naive."""
    loss: list[float]
    """Of the damped trend, by hour: pinball loss in tasks, mean over QUANTILES and the weeks held
    out; empty: not judged."""
    naive_loss: list[float]
    """Of the seasonal naive."""
    mase: float | None
    """Mean absolute error of the damped trend over that of the naive, on those weeks; above 1: it
    was worse."""

    @property
    def skill(self) -> float | None:
        """Part of the naive's pinball loss that the damped trend saves; below 0: it loses more."""
        total = sum(self.naive_loss)
        return 1 - sum(self.loss) / total if total else None


def forecast(weeks: Sequence[Week], hold_out: int = 2) -> Forecast:
    """Of the week after `weeks` (oldest first). Judged on the last `hold_out` of them, as far as
    two weeks come before. Raises ValueError for no week, or one that has not HOURS hours."""
    if not weeks or any(len(week) != HOURS for week in weeks):
        raise ValueError(f"weeks of {HOURS} hours are needed, at least one")
    judged = max(0, min(hold_out, len(weeks) - 2))
    loss, naive_loss, errors, naive_errors = ([0.0] * HOURS for _ in range(4))
    for week in range(len(weeks) - judged, len(weeks)):
        seen, actual = weeks[:week], weeks[week]
        for point, losses, absolute in ((damped, loss, errors), (naive, naive_loss, naive_errors)):
            for quantile, guess in zip(QUANTILES, _quantiles(point, seen), strict=True):
                for hour, (told, was) in enumerate(zip(guess, actual, strict=True)):
                    losses[hour] += pinball(told, was, quantile) / len(QUANTILES) / judged
            for hour, (told, was) in enumerate(zip(point(seen), actual, strict=True)):
                absolute[hour] += abs(told - was)
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
    """The same hour a week ago."""
    return list(weeks[-1])


def damped(weeks: Sequence[Week]) -> list[float]:
    """The shape of the week times its total."""
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


def pinball(told: float, was: float, quantile: float) -> float:
    """Loss of a quantile that was told: what was above it costs `quantile` a task, what was below
    the rest (Koenker)."""
    return max(quantile * (was - told), (quantile - 1) * (was - told))


def _quantiles(point: Point, weeks: Sequence[Week]) -> list[list[float]]:
    """The point moved by what the same method was wrong by in the past; without a past, as if
    arrivals were Poisson."""
    told = point(weeks)
    mean = fmean(told)
    wrong = sorted(
        (was - guess) / _scale(guess, fmean(weeks[n - 1]))
        for n in range(1, len(weeks))
        for guess, was in zip(point(weeks[:n]), weeks[n], strict=True)
    )
    if not wrong:
        normal = NormalDist()
        return [
            [max(0.0, each + normal.inv_cdf(q) * sqrt(each)) for each in told] for q in QUANTILES
        ]
    moves = [wrong[max(0, ceil(q * len(wrong)) - 1)] for q in QUANTILES]
    return [[max(0.0, each + move * _scale(each, mean)) for each in told] for move in moves]


def _scale(guess: float, mean: float) -> float:
    """What an error is measured by: quiet hours are wrong by more than their size, busy ones by
    part of it."""
    return sqrt(max(guess, mean, 1.0) * max(mean, 1.0))
