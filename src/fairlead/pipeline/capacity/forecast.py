"""Forecast of next week's arrivals from past weeks: the shape of the week, times a level with a
damped trend. Pure.

The shape is the share of a week's tasks in each hour; recent weeks count more. The level is the
week's total by Holt's method with a damped trend (Gardner and McKenzie 1985), in which a trend
continues but shrinks each week. The forecast is compared with the seasonal naive method (the value
of the same hour a week ago) on weeks held out from both, and the better method is used.

Quiet weeks (a holiday, a closed shop, a queue before its launch) are left out: see `usual_weeks`.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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

Floats = npt.NDArray[np.float64]
"""Tasks in each hour: of a week, or of weeks that all begin at the same hour, oldest first."""

Point = Callable[[Floats], Floats]


class Forecast(NamedTuple):
    """Forecast of one week by hour, with the error of its method on held-out weeks."""

    middle: Floats
    """Tasks in each hour, as a median."""
    high: Floats
    """Tasks in each hour, as the 90th percentile."""
    method: str
    """Method used: DAMPED or NAIVE."""
    quiet: int
    """Weeks that were left out."""
    held_out: int = 0
    """Weeks on which the methods were judged; 0 when the history is too short, and NAIVE is used.
    """
    loss: Floats | None = None
    """Pinball loss of the damped trend by hour, in tasks: mean over QUANTILES and the held-out
    weeks. None, as the following, if not judged."""
    naive_loss: Floats | None = None
    """Pinball loss of the seasonal naive method by hour, in tasks."""
    mase: float | None = None
    """Mean absolute error of the damped trend divided by that of the naive method on the held-out
    weeks; above 1, the trend was worse. None if the naive method had no error."""
    covered: float | None = None
    """Share of the held-out hours that had at most the 90th percentile that the method in use had
    forecast, of all hours or of those with a forecast of tasks, whichever is less; 0.9 is right,
    less means that plans are too small."""

    @property
    def skill(self) -> float | None:
        """Return the share of the naive method's pinball loss that the damped trend saves; negative
        when its loss is larger."""
        if self.loss is None or self.naive_loss is None or not self.naive_loss.any():
            return None
        return float(1 - self.loss.sum() / self.naive_loss.sum())


def forecast(weeks: npt.ArrayLike, hold_out: int = 2) -> Forecast:
    """Return the forecast of the week after `weeks`: at least one row of HOURS tasks, oldest first.

    The methods are judged on the last `hold_out` weeks that have at least two weeks before them,
    without quiet weeks.
    """
    given = np.asarray(weeks, np.float64)
    usual = usual_weeks(given)
    quiet, held_out = len(given) - len(usual), min(hold_out, len(usual) - 2)
    if held_out <= 0:
        middle, high = _quantiles(naive, usual)
        return Forecast(middle, high, NAIVE, quiet)
    ours, theirs = (_tested(point, usual, held_out) for point in (damped, naive))
    is_better = ours.loss.sum() <= theirs.loss.sum() + _ROUNDING
    method, point, used = (DAMPED, damped, ours) if is_better else (NAIVE, naive, theirs)
    middle, high = _quantiles(point, usual)
    mase = ours.error / theirs.error if theirs.error else None
    return Forecast(
        middle, high, method, quiet, held_out, ours.loss, theirs.loss, mase, used.covered
    )


def usual_weeks(weeks: Floats) -> Floats:
    """Return the weeks without those that say nothing about the next week.

    A week is quiet if it has less than QUIET of the median of the weeks with tasks. Left out are
    quiet weeks before the first other week, and quiet weeks between others, unless they are as many
    as the others: then the queue works in some weeks only. A last quiet week is left out if it is a
    single one; two may be the end of the traffic.
    """
    totals = weeks.sum(axis=1)
    some = np.sort(totals[totals > 0])
    others = np.flatnonzero(totals >= (QUIET * some[len(some) // 2] if some.size else 0.0))
    begin, last = others[0], others[-1] + 1
    middle = weeks[others] if 2 * len(others) > last - begin else weeks[begin:last]
    end = weeks[last:] if len(weeks) - last > 1 else weeks[:0]
    return np.concatenate([middle, end])


class _Test(NamedTuple):
    """Comparison of a method with the held-out weeks; see Forecast."""

    loss: Floats
    error: float
    """Sum of the absolute errors of the point forecast."""
    covered: float


def _tested(point: Point, weeks: Floats, held_out: int) -> _Test:
    truth = weeks[-held_out:]
    pasts = [weeks[:week] for week in range(len(weeks) - held_out, len(weeks))]
    predicted = np.array([point(past) for past in pasts])
    guesses = np.array([_quantiles(point, past) for past in pasts])
    losses = [pinball(guesses[:, n], truth, quantile) for n, quantile in enumerate(QUANTILES)]
    is_covered, is_busy = truth <= guesses[:, -1], predicted > 0
    covered = is_covered.mean()
    # The many hours without tasks of a queue with a daily batch are covered, and say nothing about
    # the batch.
    if is_busy.sum() >= LEAST_BUSY:
        covered = min(covered, is_covered[is_busy].mean())
    error = np.abs(predicted - truth).sum()
    return _Test(np.mean(losses, axis=(0, 1)), float(error), float(covered))


def naive(weeks: Floats) -> Floats:
    """Return the last week unchanged."""
    last: Floats = weeks[-1]
    return last


def damped(weeks: Floats) -> Floats:
    """Return the shape of the week times its expected total."""
    totals = weeks.sum(axis=1)
    level, trend = totals[0], 0.0
    for total in totals[1:]:
        before = level
        level = LEVEL * total + (1 - LEVEL) * (level + DAMPING * trend)
        trend = TREND * (level - before) + (1 - TREND) * DAMPING * trend
    counts = 0.5 ** (np.arange(len(weeks))[::-1] / HALF_LIFE_WEEKS)
    weighed = counts @ totals
    expected: Floats = max(0.0, level + DAMPING * trend) * (counts @ weeks) / (weighed or 1.0)
    return expected


def pinball(predicted: npt.ArrayLike, actual: npt.ArrayLike, quantile: float) -> Floats:
    """Return the loss of a predicted quantile (Koenker): each task above the prediction costs
    `quantile`, each task below costs 1 - `quantile`."""
    above = np.subtract(actual, predicted)
    loss: Floats = np.maximum(quantile * above, (quantile - 1) * above)
    return loss


def _quantiles(point: Point, weeks: Floats) -> list[Floats]:
    """Return the prediction of each quantile: the point forecast plus a quantile of the past errors
    of its method. A single week has no error of its method: its hours are compared with those of
    the day before, and arrivals vary at least as in a Poisson process.

    An hour with a forecast of tasks is moved by the errors of such hours, or by those of all hours
    if they are greater: the many hours without tasks of a queue with a daily batch would hide the
    errors of the batch. An hour without a forecast of tasks is moved by the errors of such hours.
    No hour is moved up by more tasks than the greatest error.
    """
    is_single = len(weeks) == 1
    predicted = point(weeks)
    now = _busy_mean(predicted)
    if is_single:
        guesses, truth = weeks[:, :-_DAY], weeks[:, _DAY:]
    else:
        guesses = np.array([point(weeks[:n]) for n in range(1, len(weeks))])
        truth = weeks[1:]
    # With the greater of the mean hours then and now, an error at a low level of the past counts as
    # that many tasks and not as a multiple of them.
    means = np.array([[max(_busy_mean(each), now)] for each in guesses])
    wrong = (truth - guesses) / _unit(guesses, means)
    greatest = max(0.0, (truth - guesses).max())
    of_busy, of_idle = wrong[guesses > 0], wrong[guesses <= 0]
    found = []
    for quantile in QUANTILES:
        every = at_rank(wrong, quantile)
        busy = max(at_rank(of_busy, quantile), every) if of_busy.size else every
        move = np.where(predicted > 0, busy, at_rank(of_idle, quantile)) * _unit(predicted, now)
        made = np.maximum(0.0, predicted + np.minimum(move, greatest))
        if is_single:
            poisson = NormalDist().inv_cdf(quantile) * np.sqrt(predicted)
            made = np.maximum(made, predicted + poisson)
        found.append(made)
    return found


def _busy_mean(guesses: Floats) -> float:
    """Return the mean of the hours with a forecast of tasks; 0 for none."""
    return float(guesses[guesses > 0].mean()) if guesses.any() else 0.0


def at_rank(values: Floats, quantile: float) -> float:
    """Return the quantile by nearest rank; 0 for no values."""
    return float(np.quantile(values, quantile, method="inverted_cdf")) if values.size else 0.0


def _unit(guess: Floats, mean: Floats | float) -> Floats:
    """Return the unit in which the error of an hour is measured: the mean hour; for a busier hour,
    the geometric mean of its forecast and the mean hour. Quiet hours have larger relative errors.
    """
    least = np.maximum(mean, 1.0)
    unit: Floats = np.sqrt(np.maximum(guess, least) * least)
    return unit
