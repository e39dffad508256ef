"""Candidates of a replay: a policy, and the sample of arrivals on which it runs; their results, and
their runners: this process, one candidate after the other, or Spark (`on_spark`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np

from fairlead.lab.policies.arrivals import Arrivals, Floats
from fairlead.lab.policies.measures import KeyWaits, Measures, measure, waits_of_keys
from fairlead.lab.policies.policy import CandidatePolicy
from fairlead.lab.policies.samples import resampled
from fairlead.lab.policies.virtual import run
from fairlead.lab.policies.weighing import weigh
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

Sample = Literal["recorded", "resampled"]


class Setup(msgspec.Struct, frozen=True):
    """Settings common to all runs. Times are microseconds."""

    train_us: int | None
    """Length of the part "train", on which policies are chosen, from the first arrival; None to
    choose on all arrivals."""
    window_us: int


class Candidate(msgspec.Struct, frozen=True):
    """A policy on a part of the arrivals: "train", "report" (later arrivals) or "all"."""

    policy_id: int
    policy: CandidatePolicy
    part: Literal["train", "report", "all"]
    sample: Sample = "recorded"
    seed: int = 0
    with_keys: bool = False
    """True to return the waits of each key too."""


class CandidateResult(msgspec.Struct, frozen=True):
    """Result of the replay of a candidate."""

    candidate: Candidate
    measures: Measures
    seconds: float
    """Processor time of the replay, in seconds."""
    keys: list[KeyWaits] = []


def part_of(arrivals: Arrivals, part: str, setup: Setup) -> Arrivals:
    """Return the arrivals of a part. Without `train_us`, each part has all arrivals."""
    if setup.train_us is None or part == "all":
        return arrivals
    return (
        arrivals.between(0, setup.train_us) if part == "train" else arrivals.between(setup.train_us)
    )


def perform(candidate: Candidate, arrivals: Arrivals, setup: Setup) -> CandidateResult:
    """Replay a candidate. Compute weights from the recorded part "train" only, because nothing
    later was known when the policy was chosen."""
    began = time.process_time()
    weights = weigh(candidate.policy.weights, part_of(arrivals, "train", setup))
    sample = part_of(arrivals, candidate.part, setup)
    if candidate.sample == "resampled":
        sample = resampled(sample, candidate.seed)
    schedule = run(sample, candidate.policy, weights)
    measures = measure(schedule, candidate.policy.all_slots, entitled(sample), setup.window_us)
    keys = waits_of_keys(schedule, sample.keys) if candidate.with_keys else []
    return CandidateResult(candidate, measures, round(time.process_time() - began, 3), keys)


def entitled(arrivals: Arrivals) -> Floats:
    """Return the mean submitted weight of each key. All policies are judged by these weights, also
    those with other weights, because otherwise each policy would be fair by its own measure."""
    tasks = np.bincount(arrivals.key, minlength=len(arrivals.keys))
    total = np.bincount(arrivals.key, arrivals.weight, minlength=len(arrivals.keys))
    return np.clip(
        np.divide(total, tasks, out=np.ones(len(tasks)), where=tasks > 0), MIN_WEIGHT, MAX_WEIGHT
    )


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
