"""Expected run times: a decaying mean for each task name and fairness key, drawn to that of the
name while runs are few.

    expected = (n * mean of the pair + DRAWN * mean of the name) / (n + DRAWN)

with n the number of runs that the pair's mean rests on.

It is the shrinkage of an empirical Bayes estimate (Efron and Morris 1977), over exponentially
weighted means, so that it follows a tenant whose tasks change. One run counts as at most WILD times
what was expected of it: a run that hung raises the expectation by a third, and by no more. Times
are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fairlead.core.fair.passes import STRIDE_SCALE

DRAWN = 2
"""Runs that the mean of the name counts as, beside a pair's own."""

MEMORY = 30
"""Runs over which a mean decays to a third."""

WILD = 10

ENOUGH = 10
"""Runs of a queue before any is expected to differ from another."""

LONG_MEMORY = 1000
"""Runs over which the mean of the whole queue decays."""

STEADY = 2.0
"""The unit stays while the mean of the queue is within this factor of it."""

MOST_PAIRS = 10_000
MOST_NAMES = 1000

MOST_KEPT = 200
"""Pairs told to the next owner: those that ran last."""

Kept = tuple[str, str, int, int]
"""(task name, fairness key, mean in microseconds, runs it rests on)."""


class _Mean:
    """Exponentially weighted, but for its first runs, which weigh alike."""

    __slots__ = ("mean", "runs")

    def __init__(self) -> None:
        self.mean = 0.0
        self.runs = 0

    def add(self, run_time: float, memory: int) -> None:
        self.runs = min(self.runs + 1, memory)
        self.mean += (run_time - self.mean) / self.runs

    def join(self, mean: float, runs: int, memory: int) -> None:
        """As if so many runs with this mean had ended."""
        self.mean = (self.mean * self.runs + mean * runs) / (self.runs + runs)
        self.runs = min(self.runs + runs, memory)


class RunTimes:
    """Of one queue. Pairs beyond MOST_PAIRS are forgotten, whoever ran longest ago first, and are
    then as good as new."""

    def __init__(self) -> None:
        self.unit = 0
        """The run time that one task of weight 1 is charged a whole stride for: about the mean of
        the queue. It moves in steps, and seldom, for levels given by two units cannot be compared.
        0: not enough runs have ended."""
        self._all = _Mean()
        self._names: dict[str, _Mean] = {}
        self._pairs: dict[tuple[str, str], _Mean] = {}
        """The one that ran last stands last."""

    def expected(self, name: str, key: str) -> int:
        """What the next run of this task name and fairness key will take, at least 1; 0 while
        nothing is known."""
        if not self.unit:
            return 0
        pair, of_name = self._pairs.get((name, key)), self._names.get(name, self._all)
        if pair is None:
            return max(1, round(of_name.mean))
        return max(1, round((pair.runs * pair.mean + DRAWN * of_name.mean) / (pair.runs + DRAWN)))

    def virtual(self, cost: int) -> int:
        """Run time as virtual time of weight 1. While nothing is known, every run is as long as
        every other."""
        return STRIDE_SCALE * cost // self.unit if self.unit else STRIDE_SCALE * (cost > 0)

    def charge(self, name: str, key: str) -> int:
        """What the next run is charged beforehand: virtual time of weight 1, at least 1."""
        expected = self.expected(name, key)
        return max(1, self.virtual(expected)) if expected else STRIDE_SCALE

    def ended(self, name: str, key: str, run_time: int) -> None:
        """A run has ended, however it did."""
        if expected := self.expected(name, key):
            run_time = min(run_time, WILD * expected)
        pair = self._pairs.pop((name, key), None) or _Mean()
        pair.add(run_time, MEMORY)
        self._put(name, key, pair)
        self._names[name].add(run_time, MEMORY)
        self._all.add(run_time, LONG_MEMORY)
        self._set_unit()

    def kept(self) -> list[Kept]:
        """For the next owner."""
        last = islice(reversed(self._pairs.items()), MOST_KEPT)
        return [(name, key, round(pair.mean), pair.runs) for (name, key), pair in last]

    def resume(self, unit: int, kept: Iterable[Kept]) -> None:
        """What an owner before has learnt of pairs that are not known here. Its unit, if there is
        none."""
        for name, key, mean, runs in kept:
            if (name, key) not in self._pairs and runs > 0:
                pair = _Mean()
                pair.join(mean, runs, MEMORY)
                self._put(name, key, pair)
                self._names[name].join(mean, runs, MEMORY)
                self._all.join(mean, runs, LONG_MEMORY)
        self.unit = self.unit or unit

    def _put(self, name: str, key: str, pair: _Mean) -> None:
        self._pairs[name, key] = pair
        if len(self._pairs) > MOST_PAIRS:
            del self._pairs[next(iter(self._pairs))]
        if name not in self._names:
            self._names[name] = _Mean()
            if len(self._names) > MOST_NAMES:
                del self._names[next(iter(self._names))]

    def _set_unit(self) -> None:
        mean = max(1, round(self._all.mean))
        if self._all.runs >= ENOUGH and not self.unit / STEADY <= mean <= self.unit * STEADY:
            self.unit = mean
