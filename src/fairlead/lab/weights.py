"""Weights as people write them: by name, or by a rule from the work of each key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from fairlead.errors import ConfigurationError
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

RECORDED, EQUAL = "recorded", "equal"

_RULE = re.compile(r"(usage|tasks|run)\^(-?[0-9]+(?:\.[0-9]+)?)")
_MOST_EXPONENT = 4.0
_RULES = (
    f"use '{RECORDED}', '{EQUAL}', a table of KEY = WEIGHT, or a power of what each key did, as in"
    " 'usage^-0.5' (worker-seconds), 'tasks^-0.5' (their number) or 'run^-1' (their mean run)"
)


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
