"""Weights as people write them: by name, drawn from a distribution, or by a rule from the work of
each key."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.errors import ConfigurationError
from fairlead.model import DEFAULT_WEIGHT, MAX_WEIGHT, MIN_WEIGHT

_FORMS = "use KEY=WEIGHT,..., uniform:LOW:HIGH or log:LOW:HIGH"

RECORDED, EQUAL = "recorded", "equal"

_RULE = re.compile(r"(usage|tasks|run)\^(-?[0-9]+(?:\.[0-9]+)?)")
_MOST_EXPONENT = 4.0
_RULES = (
    f"use '{RECORDED}', '{EQUAL}', a table of KEY = WEIGHT, or a power of what each key did, as in"
    " 'usage^-0.5' (worker-seconds), 'tasks^-0.5' (their number) or 'run^-1' (their mean run)"
)


@dataclass(frozen=True)
class KeyWeights:
    """Weights by key. A key that is not named has the default, or a draw from `low` to `high`."""

    named: Mapping[str, float] = field(default_factory=dict)
    low: float = DEFAULT_WEIGHT
    high: float = DEFAULT_WEIGHT
    is_log: bool = False
    """True for draws in which every power of ten is equally likely."""

    def of(self, keys: Sequence[str], random: random.Random) -> dict[str, float]:
        """Return the weight of each key. Raise ConfigurationError if a named key is not among
        them."""
        for name in self.named:
            if name not in keys:
                known = ", ".join(keys[:10]) + (", ..." if len(keys) > 10 else "")
                raise ConfigurationError(
                    f"--weights names {name!r}, which has no task; keys: {known}"
                )
        return {key: self.named[key] if key in self.named else self._draw(random) for key in keys}

    def _draw(self, random: random.Random) -> float:
        if self.low == self.high:
            return self.low
        if self.is_log:
            return math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        return random.uniform(self.low, self.high)


def parse_weights(text: str | None) -> KeyWeights:
    """Parse `a=5,b=1`, `uniform:LOW:HIGH` or `log:LOW:HIGH`. Raise ConfigurationError for any other
    form."""
    if text is None:
        return KeyWeights()
    form, *bounds = text.split(":")
    if form in ("uniform", "log") and len(bounds) == 2:
        low, high = (_weight(bound) for bound in bounds)
        if low > high:
            raise ConfigurationError(
                f"--weights {text!r}: the first bound must not be above the second"
            )
        return KeyWeights(low=low, high=high, is_log=form == "log")
    named: dict[str, float] = {}
    for pair in text.split(","):
        key, equals, weight = pair.strip().rpartition("=")
        if not equals or not key:
            raise ConfigurationError(
                f"--weights {text!r}: {pair!r} gives no key a weight; {_FORMS}"
            )
        named[key] = _weight(weight)
    return KeyWeights(named)


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
        _check_bounds(weight, f"weight of {key!r}: {weight:g}")


def _check_bounds(weight: float, subject: str) -> None:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ConfigurationError(
            f"{subject} is out of bounds; use {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
        )


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        raise ConfigurationError(f"--weights: {text!r} is no number; {_FORMS}") from None
    _check_bounds(weight, f"--weights: {text}")
    return weight
