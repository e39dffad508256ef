"""Runners of the trials of a replay: this process, one trial after the other, or Spark
(`on_spark`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.candidate import Found, Setup, Trial, perform

Tell = Callable[[str, int], None]
"""A callback for each finished part of the work, with its name and count."""


class Runner(Protocol):
    """A performer of trials on arrivals that it was given before."""

    def perform(self, trials: Sequence[Trial], setup: Setup, tell: Tell) -> list[Found]:
        """Perform each trial once, in any order, and return the results in the order of
        `trials`."""


class InProcess:
    """A runner without Spark."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def perform(self, trials: Sequence[Trial], setup: Setup, tell: Tell) -> list[Found]:
        found = []
        for trial in trials:
            found.append(perform(trial, self._arrivals, setup))
            tell("runs", 1)
        return found


def longest_first(trials: Sequence[Trial]) -> list[int]:
    """Return the indices of the trials, the longest first, so that the last ones are short and no
    core waits long for another."""
    return sorted(range(len(trials)), key=lambda index: _expected(trials[index]), reverse=True)


def _expected(trial: Trial) -> float:
    """Return the relative cost of a trial. A fair order costs about twice as much as fifo, and few
    slots keep long queues."""
    fair = 2.0 if trial.policy.order == "fair" else 1.0
    return fair + 1.0 / trial.policy.all_slots
