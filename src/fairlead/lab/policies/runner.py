"""Who performs the trials of a replay: this process, one after the other, or Spark (`on_spark`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.candidate import Found, Setup, Trial, perform

Tell = Callable[[str, int], None]
"""Hears of each part of the work that is done, with how many more."""


class Runner(Protocol):
    """Performs trials on arrivals that it was given before."""

    def perform(self, trials: Sequence[Trial], setup: Setup, tell: Tell) -> list[Found]:
        """Each once, answered in their order, whatever the order they were performed in."""


class InProcess:
    """Without Spark."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def perform(self, trials: Sequence[Trial], setup: Setup, tell: Tell) -> list[Found]:
        found = []
        for trial in trials:
            found.append(perform(trial, self._arrivals, setup))
            tell("runs", 1)
        return found


def dearest_first(trials: Sequence[Trial]) -> list[int]:
    """Their places, those that take longest first: so the last ones to end are short, and no core
    waits long for another."""
    return sorted(range(len(trials)), key=lambda place: _expected(trials[place]), reverse=True)


def _expected(trial: Trial) -> float:
    """Relative cost. A fair order costs about twice what fifo does; whoever has few slots keeps
    long queues."""
    fair = 2.0 if trial.policy.order == "fair" else 1.0
    return fair + 1.0 / trial.policy.all_slots
