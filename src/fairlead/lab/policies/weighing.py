"""Weights of keys under a policy: given by name, or by a rule from the work of each key in the
arrivals that the policy is chosen on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairlead.lab.policies.arrivals import Arrivals, Floats
from fairlead.lab.weights import RECORDED, parse_power
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

_SHRUNK_BY = 30
"""Number of runs of the queue's mean length that are added to the runs of a key before the mean of
the key is taken, since a few runs say little about a key."""


def weigh(rule: str | Mapping[str, float], arrivals: Arrivals) -> dict[str, float] | None:
    """Return weights by key; a missing key has the default, and None means that each task keeps its
    own weight. Powers are scaled so that the median key weighs 1, and kept within the bounds of
    weights."""
    if rule == RECORDED:
        return None
    if not isinstance(rule, str):
        return dict(rule)
    power = parse_power(rule)
    if power is None or not len(arrivals):
        return {}
    weights = _of_keys(power.of, arrivals) ** power.exponent
    weights = np.clip(weights / np.median(weights), MIN_WEIGHT, MAX_WEIGHT)
    seen = np.unique(arrivals.key)
    return {arrivals.keys[key]: float(weights[index]) for index, key in enumerate(seen)}


def _of_keys(what: str, arrivals: Arrivals) -> Floats:
    """Return the work of each key that has a task, above 0."""
    tasks = np.bincount(arrivals.key, minlength=len(arrivals.keys)).astype(np.float64)
    usage = np.bincount(arrivals.key, arrivals.run.astype(np.float64), minlength=len(arrivals.keys))
    mean = usage.sum() / tasks.sum()
    values = {
        "tasks": tasks,
        "usage": usage,
        "run": (usage + _SHRUNK_BY * mean) / (tasks + _SHRUNK_BY),
    }[what]
    positive: Floats = np.maximum(values[tasks > 0], 1.0)
    return positive
