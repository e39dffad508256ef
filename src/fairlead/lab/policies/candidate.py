"""One run of a replay: a policy on a sample of the arrivals. What travels to a worker, and what
comes back."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
import numpy as np

from fairlead.lab.policies.arrivals import Arrivals, Floats
from fairlead.lab.policies.measures import KeyWaits, Measures, measure, waits_of_keys
from fairlead.lab.policies.policy import Policy
from fairlead.lab.policies.samples import resampled, shaken
from fairlead.lab.policies.sessions import Sessions
from fairlead.lab.policies.virtual import run
from fairlead.lab.policies.weighing import weigh
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

Sample = Literal["recorded", "shaken", "resampled"]


class Setup(msgspec.Struct, frozen=True):
    """The same for all runs. Microseconds."""

    train_us: int | None
    """Policies are chosen on what came within so long of the first arrival; None: on everything."""
    window_us: int
    shake_us: int
    is_closed: bool = False


class Trial(msgspec.Struct, frozen=True):
    """A policy on a part of the arrivals: `train`, `report` (what came later), or `all`."""

    policy_id: int
    policy: Policy
    part: Literal["train", "report", "all"]
    sample: Sample = "recorded"
    seed: int = 0
    with_keys: bool = False
    """Answer the waits of each key too."""


class Found(msgspec.Struct, frozen=True):
    """What a trial answers."""

    trial: Trial
    measures: Measures
    seconds: float
    """Processor time."""
    keys: list[KeyWaits] = []


def part_of(arrivals: Arrivals, part: str, setup: Setup) -> Arrivals:
    """The arrivals of a part; without a day to part them, each is everything."""
    if setup.train_us is None or part == "all":
        return arrivals
    return (
        arrivals.between(0, setup.train_us) if part == "train" else arrivals.between(setup.train_us)
    )


def sampled(arrivals: Arrivals, trial: Trial, setup: Setup) -> Arrivals:
    """The sample of these arrivals that the trial asks for."""
    if trial.sample == "shaken":
        return shaken(arrivals, trial.seed, setup.shake_us)
    return resampled(arrivals, trial.seed) if trial.sample == "resampled" else arrivals


def perform(trial: Trial, arrivals: Arrivals, setup: Setup) -> Found:
    """Replay it. Weights by rule come from what was known when the policy was chosen: the part
    `train`, as recorded."""
    began = time.process_time()
    weights = weigh(trial.policy.weights, part_of(arrivals, "train", setup))
    sample = sampled(part_of(arrivals, trial.part, setup), trial, setup)
    sessions = Sessions(sample) if setup.is_closed else None
    schedule = run(sample, trial.policy, weights, sessions)
    measures = measure(schedule, trial.policy.all_slots, entitled(sample), setup.window_us)
    keys = waits_of_keys(schedule, sample.keys) if trial.with_keys else []
    return Found(trial, measures, round(time.process_time() - began, 3), keys)


def entitled(arrivals: Arrivals) -> Floats:
    """By key, what it is due whatever a policy gives it: the mean of its weights as submitted.
    Policies with weights of their own are judged by this too: else each would be fair by its own
    measure."""
    tasks = np.bincount(arrivals.key, minlength=len(arrivals.keys))
    total = np.bincount(arrivals.key, arrivals.weight, minlength=len(arrivals.keys))
    return np.clip(
        np.divide(total, tasks, out=np.ones(len(tasks)), where=tasks > 0), MIN_WEIGHT, MAX_WEIGHT
    )
