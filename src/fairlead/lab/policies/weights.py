"""What each key weighs under a policy: given by name, or by a rule from what the key did in the
arrivals it is chosen on."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from fairlead.errors import ConfigurationError
from fairlead.lab.policies.arrivals import Arrivals, Floats
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

RECORDED, EQUAL = "recorded", "equal"

_RULE = re.compile(r"(usage|tasks|run)\^(-?[0-9]+(?:\.[0-9]+)?)")
_MOST_EXPONENT = 4.0
_SHRUNK_BY = 30
"""The mean run of a key counts beside so many runs of the queue's mean: a few runs of a key say
little. pipeline.md, 5."""

_FORMS = (
    f"use '{RECORDED}', '{EQUAL}', a table of KEY = WEIGHT, or a power of what each key did, as in"
    " 'usage^-0.5' (worker-seconds), 'tasks^-0.5' (their number) or 'run^-1' (their mean run)"
)


def check(rule: str | Mapping[str, float]) -> None:
    """Raises ConfigurationError unless it is a rule."""
    if isinstance(rule, str):
        found = _RULE.fullmatch(rule)
        if rule not in (RECORDED, EQUAL) and (
            found is None or abs(float(found[2])) > _MOST_EXPONENT
        ):
            raise ConfigurationError(f"weights {rule!r}: {_FORMS}")
        return
    for key, weight in rule.items():
        if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            raise ConfigurationError(
                f"weight of {key!r}: {weight:g} is out of bounds; use {MIN_WEIGHT:g} to"
                f" {MAX_WEIGHT:g}"
            )


def weigh(rule: str | Mapping[str, float], arrivals: Arrivals) -> dict[str, float] | None:
    """By key; one that is missing has the default. None: each task keeps its own. Powers are scaled
    so that the key in the middle weighs 1, and kept within the bounds of weights."""
    if rule == RECORDED:
        return None
    if not isinstance(rule, str):
        return dict(rule)
    found = _RULE.fullmatch(rule)
    if found is None or not len(arrivals):
        return {}
    weights = _of_keys(found[1], arrivals) ** float(found[2])
    weights = np.clip(weights / np.median(weights), MIN_WEIGHT, MAX_WEIGHT)
    seen = np.unique(arrivals.key)
    return {arrivals.keys[key]: float(weights[place]) for place, key in enumerate(seen)}


def _of_keys(what: str, arrivals: Arrivals) -> Floats:
    """Of each key that has a task, above 0."""
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
