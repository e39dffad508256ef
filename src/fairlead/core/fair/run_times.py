"""Expected run times: a decaying mean for each task name and fairness key, shrunk towards the mean
of the name while there are few runs.

    expected = (n * mean of the pair + DRAWN * mean of the name) / (n + DRAWN)

with n the number of runs in the pair's mean.

The formula is the shrinkage of an empirical Bayes estimate (Efron and Morris 1977) over
exponentially weighted means, so that the estimate follows a tenant whose tasks change. A run
longer than WILD times its expectation enters the mean as WILD times its expectation, so a run that
hung raises the expectation by at most a third. Times are microseconds.
"""

from __future__ import annotations

from fairlead.core.fair.strides import STRIDE_SCALE

DRAWN = 2
"""Number of runs that the mean of the name counts for, beside a pair's own runs."""

MEMORY = 30
"""Number of runs over which a mean decays to a third."""

WILD = 10

ENOUGH = 10
"""Runs of a queue before run times are expected to differ."""

LONG_MEMORY = 1000
"""Number of runs over which the mean of the whole queue decays."""

STEADY = 2.0
"""Factor within which the queue's mean may move without a change of the unit."""

MOST_UNITS = 1 << 20
"""Longest charge of one run, in units of the queue, so that passes keep to 64 bits even after a
damaged record."""

MOST_MEANS = 10_000


class _RunningMean:
    """An exponentially weighted mean, except for the first runs, which have equal weight."""

    __slots__ = ("mean", "runs")

    def __init__(self) -> None:
        self.mean = 0.0
        self.runs = 0

    def add(self, run_time: float, memory: int) -> None:
        self.runs = min(self.runs + 1, memory)
        self.mean += (run_time - self.mean) / self.runs


class RunTimes:
    """Run times of one queue. Beyond MOST_MEANS, the mean whose last run is the oldest is
    dropped."""

    def __init__(self) -> None:
        self.unit = 0
        """Run time for which a task of weight 1 is charged a whole stride (microseconds): about the
        mean of the queue. Changes rarely and in steps, because levels assigned by different units
        cannot be compared. The unit is 0 until enough runs have ended."""
        self._all = _RunningMean()
        self._means: dict[tuple[str, str | None], _RunningMean] = {}
        """Means by task name and fairness key, or None for the name, in order of the last run."""

    def expected(self, name: str, key: str) -> int:
        """Return the expected time of the next run of this task name and fairness key
        (microseconds), at least 1; 0 while nothing is known."""
        if not self.unit:
            return 0
        pair, of_name = self._means.get((name, key)), self._means.get((name, None), self._all)
        if pair is None:
            return max(1, round(of_name.mean))
        return max(1, round((pair.runs * pair.mean + DRAWN * of_name.mean) / (pair.runs + DRAWN)))

    def virtual(self, cost: int) -> int:
        """Return a run time as virtual time of weight 1. While the unit is unknown, treat all runs
        as equally long, and longer ones than MOST_UNITS as that long."""
        if not self.unit:
            return STRIDE_SCALE * (cost > 0)
        return min(STRIDE_SCALE * cost // self.unit, STRIDE_SCALE * MOST_UNITS)

    def charge(self, name: str, key: str) -> int:
        """Return the advance charge of the next run: virtual time of weight 1, at least 1."""
        expected = self.expected(name, key)
        return max(1, self.virtual(expected)) if expected else STRIDE_SCALE

    def ended(self, name: str, key: str, run_time: int) -> None:
        """Add a run time (microseconds) of a run that ended, with whatever outcome."""
        if expected := self.expected(name, key):
            run_time = min(run_time, WILD * expected)
        for pair in ((name, key), (name, None)):
            mean = self._means.pop(pair, None) or _RunningMean()
            mean.add(run_time, MEMORY)
            self._means[pair] = mean
            if len(self._means) > MOST_MEANS:
                del self._means[next(iter(self._means))]
        self._all.add(run_time, LONG_MEMORY)
        self._set_unit()

    def _set_unit(self) -> None:
        mean = max(1, round(self._all.mean))
        if self._all.runs >= ENOUGH and not self.unit / STEADY <= mean <= self.unit * STEADY:
            self.unit = mean
