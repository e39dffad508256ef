"""Weights of keys under a policy: given by name, or by a rule from the work of each key in the
arrivals that the policy is chosen on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fairlead.errors import ConfigurationError
from fairlead.lab.policies.arrivals import Arrivals, Floats
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

RECORDED, EQUAL = "recorded", "equal"

_RULE = re.compile(r"(usage|tasks|run)\^(-?[0-9]+(?:\.[0-9]+)?)")
_MOST_EXPONENT = 4.0
_RULES = (
    f"use '{RECORDED}', '{EQUAL}', a table of KEY = WEIGHT, or a power of what each key did, as in"
    " 'usage^-0.5' (worker-seconds), 'tasks^-0.5' (their number) or 'run^-1' (their mean run)"
)

_SHRUNK_BY = 30
"""Number of runs of the queue's mean length that are added to the runs of a key before the mean of
the key is taken, since a few runs say little about a key."""


class Power(NamedTuple):
    """Weights in proportion to a power of the work of each key."""

    of: str
    """"usage", "tasks" or "run"."""
    exponent: float


def parse_power(rule: str) -> Power | None:
    """Return the power that a rule such as `usage^-0.5` names; None for any other rule."""
    found = _RULE.fullmatch(rule)
    return None if found is None else Power(found[1], float(found[2]))


def check_rule(rule: str | Mapping[str, float]) -> None:
    """Raise ConfigurationError unless `rule` is a rule, or a table of weights within their
    bounds."""
    if isinstance(rule, str):
        power = parse_power(rule)
        if rule not in (RECORDED, EQUAL) and (
            power is None or abs(power.exponent) > _MOST_EXPONENT
        ):
            raise ConfigurationError(f"weights {rule!r}: {_RULES}")
        return
    for key, weight in rule.items():
        if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            raise ConfigurationError(
                f"weight of {key!r}: {weight:g} is out of bounds; use {MIN_WEIGHT:g} to"
                f" {MAX_WEIGHT:g}"
            )


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
