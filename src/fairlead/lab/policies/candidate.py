"""Candidates of a replay: a policy, the sample of arrivals on which it runs, and the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np

from fairlead.lab.policies.arrivals import Arrivals, Floats
from fairlead.lab.policies.measures import KeyWaits, Measures, measure, waits_of_keys
from fairlead.lab.policies.policy import CandidatePolicy
from fairlead.lab.policies.samples import resampled
from fairlead.lab.policies.virtual import run
from fairlead.lab.policies.weighing import weigh
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

Part = Literal["train", "report"]
Sample = Literal["recorded", "resampled"]


class Setup(msgspec.Struct, frozen=True):
    """Settings common to all runs. Times are microseconds."""

    train_us: int | None
    """Length of the part "train", on which policies are chosen, from the first arrival; None to
    choose on all arrivals."""
    window_us: int


class Candidate(msgspec.Struct, frozen=True):
    """A policy on a part of the arrivals: "train", or "report" (later arrivals)."""

    policy_id: int
    policy: CandidatePolicy
    part: Part
    sample: Sample = "recorded"
    seed: int = 0
    with_keys: bool = False
    """True to return the waits of each key too."""


class CandidateResult(msgspec.Struct, frozen=True):
    """Result of the replay of a candidate."""

    candidate: Candidate
    measures: Measures
    keys: list[KeyWaits] = []


def part_of(arrivals: Arrivals, part: Part, setup: Setup) -> Arrivals:
    """Return the arrivals of a part. Without `train_us`, each part has all arrivals."""
    if setup.train_us is None:
        return arrivals
    return (
        arrivals.between(0, setup.train_us) if part == "train" else arrivals.between(setup.train_us)
    )


def perform(candidate: Candidate, arrivals: Arrivals, setup: Setup) -> CandidateResult:
    """Replay a candidate. Compute weights from the recorded part "train" only, because nothing
    later was known when the policy was chosen."""
    weights = weigh(candidate.policy.weights, part_of(arrivals, "train", setup))
    sample = part_of(arrivals, candidate.part, setup)
    if candidate.sample == "resampled":
        sample = resampled(sample, candidate.seed)
    schedule = run(sample, candidate.policy, weights)
    measures = measure(schedule, candidate.policy.all_slots, entitled(sample), setup.window_us)
    keys = waits_of_keys(schedule, sample.keys) if candidate.with_keys else []
    return CandidateResult(candidate, measures, keys)


def entitled(arrivals: Arrivals) -> Floats:
    """Return the mean submitted weight of each key. All policies are judged by these weights, also
    those with other weights, because otherwise each policy would be fair by its own measure."""
    tasks = np.bincount(arrivals.key, minlength=len(arrivals.keys))
    total = np.bincount(arrivals.key, arrivals.weight, minlength=len(arrivals.keys))
    return np.clip(
        np.divide(total, tasks, out=np.ones(len(tasks)), where=tasks > 0), MIN_WEIGHT, MAX_WEIGHT
    )


Runner = Callable[[Sequence[Candidate], Setup], list[CandidateResult]]
"""Perform each candidate on arrivals that the runner has, in any order; return the results in the
order of the candidates."""


def in_process(arrivals: Arrivals) -> Runner:
    """Return a runner in this process, one candidate after the other."""
    return lambda candidates, setup: [perform(each, arrivals, setup) for each in candidates]
