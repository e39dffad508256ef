"""What a key weighs: given by name, or drawn for every key from a distribution."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.errors import ConfigurationError
from fairlead.model import DEFAULT_WEIGHT, MAX_WEIGHT, MIN_WEIGHT

_FORMS = "use KEY=WEIGHT,..., uniform:LOW:HIGH or log:LOW:HIGH"


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


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        raise ConfigurationError(f"--weights: {text!r} is no number; {_FORMS}") from None
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ConfigurationError(
            f"--weights: {text} is out of bounds; use {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
        )
    return weight
