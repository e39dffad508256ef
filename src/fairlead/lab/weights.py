"""Weights as people write them: by name, drawn for every key from a distribution, or by a rule from
what the key did."""

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
class Weights:
    """Weights by key; a key that is not named has the default, or draws from `low` to `high`."""

    named: Mapping[str, float] = field(default_factory=dict)
    low: float = DEFAULT_WEIGHT
    high: float = DEFAULT_WEIGHT
    is_log: bool = False
    """Drawn so that every power of ten is as likely as another."""

    def of(self, keys: Sequence[str], random: random.Random) -> dict[str, float]:
        """The weight of each key. Raises ConfigurationError if a named one is not among them."""
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


def parse_weights(text: str | None) -> Weights:
    """`a=5,b=1`, `uniform:LOW:HIGH` or `log:LOW:HIGH`. Raises ConfigurationError."""
    if text is None:
        return Weights()
    form, *bounds = text.split(":")
    if form in ("uniform", "log") and len(bounds) == 2:
        low, high = (_weight(bound) for bound in bounds)
        if low > high:
            raise ConfigurationError(
                f"--weights {text!r}: the first bound must not be above the second"
            )
        return Weights(low=low, high=high, is_log=form == "log")
    named: dict[str, float] = {}
    for pair in text.split(","):
        key, equals, weight = pair.strip().rpartition("=")
        if not equals or not key:
            raise ConfigurationError(
                f"--weights {text!r}: {pair!r} gives no key a weight; {_FORMS}"
            )
        named[key] = _weight(weight)
    return Weights(named)


class Power(NamedTuple):
    """Weights in proportion to a power of what each key did."""

    of: str
    """usage, tasks or run."""
    exponent: float


def parse_power(rule: str) -> Power | None:
    """Return the power that `usage^-0.5` and its like name; None: the rule is another one."""
    found = _RULE.fullmatch(rule)
    return None if found is None else Power(found[1], float(found[2]))


def check_rule(rule: str | Mapping[str, float]) -> None:
    """Raise ConfigurationError unless it is a rule, or a table of weights within their bounds."""
    if isinstance(rule, str):
        power = parse_power(rule)
        if rule not in (RECORDED, EQUAL) and (
            power is None or abs(power.exponent) > _MOST_EXPONENT
        ):
            raise ConfigurationError(f"weights {rule!r}: {_RULES}")
        return
    for key, weight in rule.items():
        _check_bounds(weight, f"weight of {key!r}: {weight:g}")


def _check_bounds(weight: float, told: str) -> None:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ConfigurationError(f"{told} is out of bounds; use {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        raise ConfigurationError(f"--weights: {text!r} is no number; {_FORMS}") from None
    _check_bounds(weight, f"--weights: {text}")
    return weight
