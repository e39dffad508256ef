"""Forecast of next week's arrivals from past weeks: the shape of the week, times a level with a
damped trend. Pure.

The shape is the share of a week's tasks in each hour; recent weeks count more. The level is the
week's total by Holt's method with a damped trend (Gardner and McKenzie 1985), in which a trend
continues but shrinks each week. The forecast is compared with the seasonal naive method (the value
of the same hour a week ago) on weeks held out from both, and the better method is used.

Quiet weeks (a holiday, a closed shop, a queue before its launch) are left out: see `usual_weeks`.
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

QUIET = 0.25
"""A week with less than this share of the median week is quiet."""

LEAST_BUSY = 10
"""Least number of held-out hours with a forecast of tasks that are judged by themselves."""

_DAY = 24

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
    covered: float | None
    """Share of the held-out hours that had at most the 90th percentile that the method in use had
    forecast, of all hours or of those with a forecast of tasks, whichever is less; 0.9 is right,
    less means that plans are too small. None if not judged."""
    quiet: int
    """Weeks that were left out."""

    @property
    def skill(self) -> float | None:
        """Return the share of the naive method's pinball loss that the damped trend saves; negative
        when its loss is larger."""
        total = sum(self.naive_loss)
        return 1 - sum(self.loss) / total if total else None


def forecast(weeks: Sequence[Week], hold_out: int = 2) -> Forecast:
    """Return the forecast of the week after `weeks` (oldest first).

    The methods are judged on the last `hold_out` weeks that have at least two weeks before them,
    without quiet weeks. Raise ValueError for no week, or for a week without exactly HOURS hours.
    """
    if not weeks or any(len(week) != HOURS for week in weeks):
        raise ValueError(f"weeks must hold at least one week, each with {HOURS} hours")
    given, weeks = len(weeks), usual_weeks(weeks)
    judged = max(0, min(hold_out, len(weeks) - 2))
    tests = {
        method: [
            _judged(point, weeks[:week], weeks[week])
            for week in range(len(weeks) - judged, len(weeks))
        ]
        for method, point in ((DAMPED, damped), (NAIVE, naive))
    }
    loss, naive_loss = (
        [fmean(losses) for losses in zip(*(test.losses for test in tests[method]), strict=True)]
        for method in (DAMPED, NAIVE)
    )
    error, naive_error = (sum(test.error for test in tests[method]) for method in (DAMPED, NAIVE))
    is_better = judged > 0 and sum(loss) <= sum(naive_loss) + _ROUNDING
    method = DAMPED if is_better else NAIVE
    middle, high = _quantiles(damped if is_better else naive, weeks)
    return Forecast(
        middle,
        high,
        method,
        judged,
        loss,
        naive_loss,
        mase=error / naive_error if naive_error else None,
        covered=_covered(tests[method]) if judged else None,
        quiet=given - len(weeks),
    )


def usual_weeks(weeks: Sequence[Week]) -> Sequence[Week]:
    """Return the weeks without those that say nothing about the next week.

    A week is quiet if it has less than QUIET of the median of the weeks with tasks. Left out are
    quiet weeks before the first other week, and quiet weeks between others, unless they are as many
    as the others: then the queue works in some weeks only. A last quiet week is left out if it is a
    single one; two may be the end of the traffic.
    """
    totals = [sum(week) for week in weeks]
    some = sorted(total for total in totals if total)
    line = QUIET * some[len(some) // 2] if some else 0.0
    is_quiet = [total < line for total in totals]
    if not any(is_quiet):
        return weeks
    begin, last = is_quiet.index(False), len(weeks) - is_quiet[::-1].index(False)
    is_over = len(weeks) - last > 1
    middle, end = range(begin, last), range(last, len(weeks)) if is_over else range(0)
    others = [n for n in middle if not is_quiet[n]]
    kept = others if 2 * len(others) > len(middle) else middle
    return [weeks[n] for n in [*kept, *end]]


class _Test(NamedTuple):
    """Comparison of a forecast with the week that came."""

    losses: list[float]
    """Pinball loss of each hour, mean over QUANTILES."""
    error: float
    """Sum of the absolute errors of the point forecast."""
    covered: list[bool]
    """Whether each hour had at most the forecast of the last quantile."""
    busy: list[bool]
    """Whether tasks were forecast for each hour."""


def _covered(tests: Sequence[_Test]) -> float:
    """Return the share of the covered hours, of all hours or of the busy ones, whichever is less.

    The many hours without tasks of a queue with a daily batch are covered, and say nothing about
    the batch.
    """
    every = [covered for test in tests for covered in test.covered]
    busy = [
        covered
        for test in tests
        for covered, is_busy in zip(test.covered, test.busy, strict=True)
        if is_busy
    ]
    return min(fmean(every), fmean(busy)) if len(busy) >= LEAST_BUSY else fmean(every)


def _judged(point: Point, past: Sequence[Week], truth: Week) -> _Test:
    guesses, predicted = _quantiles(point, past), point(past)
    return _Test(
        [
            fmean(
                pinball(guess[hour], actual, q) for q, guess in zip(QUANTILES, guesses, strict=True)
            )
            for hour, actual in enumerate(truth)
        ],
        sum(abs(guess - actual) for guess, actual in zip(predicted, truth, strict=True)),
        [actual <= guess for guess, actual in zip(guesses[-1], truth, strict=True)],
        [guess > 0 for guess in predicted],
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
    of its method. A single week has no error of its method: its hours are compared with those of
    the day before, and arrivals vary at least as in a Poisson process.

    An hour with a forecast of tasks is moved by the errors of such hours, or by those of all hours
    if they are greater: the many hours without tasks of a queue with a daily batch would hide the
    errors of the batch. An hour without a forecast of tasks is moved by the errors of such hours.
    No hour is moved up by more tasks than the greatest error.
    """
    predicted = point(weeks)
    now = _busy_mean(predicted)
    if len(weeks) == 1:
        [week] = weeks
        pairs = [(list(week[:-_DAY]), week[_DAY:])]
    else:
        pairs = [(point(weeks[:n]), weeks[n]) for n in range(1, len(weeks))]
    wrong: dict[bool, list[float]] = {True: [], False: []}
    greatest = 0.0
    for guesses, truth in pairs:
        mean = max(_busy_mean(guesses), now)
        for guess, was in zip(guesses, truth, strict=True):
            wrong[guess > 0].append((was - guess) / _unit(guess, mean))
            greatest = max(greatest, was - guess)
    every = [*wrong[True], *wrong[False]]
    moves = [
        {
            True: max(at_rank(wrong[True] or every, q), at_rank(every, q)),
            False: at_rank(wrong[False], q),
        }
        for q in QUANTILES
    ]
    made = [
        [max(0.0, each + min(move[each > 0] * _unit(each, now), greatest)) for each in predicted]
        for move in moves
    ]
    if len(weeks) > 1:
        return made
    poisson = [NormalDist().inv_cdf(q) for q in QUANTILES]
    return [
        [max(one, each + move * sqrt(each)) for one, each in zip(ones, predicted, strict=True)]
        for move, ones in zip(poisson, made, strict=True)
    ]


def _busy_mean(guesses: Sequence[float]) -> float:
    """Return the mean of the hours with a forecast of tasks; 0 for none."""
    busy = [guess for guess in guesses if guess > 0]
    return fmean(busy) if busy else 0.0


def at_rank(values: Sequence[float], quantile: float) -> float:
    """Return the quantile by nearest rank; 0 for no values."""
    return sorted(values)[max(0, ceil(quantile * len(values)) - 1)] if values else 0.0


def _unit(guess: float, mean: float) -> float:
    """Return the unit in which the error of an hour is measured: the mean hour; for a busier hour,
    the geometric mean of its forecast and the mean hour. Quiet hours have larger relative errors.

    mean: the greater of the mean hours then and now, so that an error at a low level of the past
    counts as that many tasks and not as a multiple of them.
    """
    return sqrt(max(guess, mean, 1.0) * max(mean, 1.0))
