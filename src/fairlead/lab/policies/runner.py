"""Runners of candidates: this process, one candidate after the other, or Spark (`on_spark`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.candidate import Candidate, CandidateResult, Setup, perform

OnProgress = Callable[[str, int], None]
"""A callback for each finished part of the work, with its name and count."""


class Runner(Protocol):
    """A runner of candidates on arrivals that it was given before."""

    def perform(
        self, candidates: Sequence[Candidate], setup: Setup, on_progress: OnProgress
    ) -> list[CandidateResult]:
        """Run each candidate once, in any order, and return the results in the order of
        `candidates`."""


class InProcess:
    """A runner without Spark."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def perform(
        self, candidates: Sequence[Candidate], setup: Setup, on_progress: OnProgress
    ) -> list[CandidateResult]:
        found = []
        for candidate in candidates:
            found.append(perform(candidate, self._arrivals, setup))
            on_progress("runs", 1)
        return found


def longest_first(candidates: Sequence[Candidate]) -> list[int]:
    """Return the indices of the candidates, the longest run first, so that the last ones are short
    and no core waits long for another."""
    return sorted(
        range(len(candidates)), key=lambda index: _expected(candidates[index]), reverse=True
    )


def _expected(candidate: Candidate) -> float:
    """Return the relative cost of a candidate. A fair order costs about twice as much as fifo, and
    few slots keep long queues."""
    fair = 2.0 if candidate.policy.order == "fair" else 1.0
    return fair + 1.0 / candidate.policy.all_slots
