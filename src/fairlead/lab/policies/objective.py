"""What is best: one measure, and what else must hold. Stated before, so that the result is not read
into the table."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import msgspec
import numpy as np

from fairlead.errors import ConfigurationError
from fairlead.lab.policies.measures import Measures

_UNITS = {"us": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_FIELDS = {name.removesuffix("_us"): name for name in Measures.__struct_fields__}
_MORE_IS_BETTER = {"jain_mean", "jain_least", "utilisation"}
_NO_AIM = {"tasks", "keys", "jain_windows"}
_REQUIREMENT = re.compile(r"([a-z0-9_]+)\s*(<=|>=)\s*([0-9.]+)(us|ms|s|m|h)?")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}

AIMS = tuple(name for name in _FIELDS if name not in _NO_AIM)
"""The measures that can be an objective; durations without their `_us`."""


class Requirement(NamedTuple):
    """A measure that must stay on one side of a bound."""

    name: str
    sign: str
    bound: float

    def holds(self, measures: Measures) -> bool:
        """Whether it does; a measure that there is none of is no failure."""
        value = value_of(self.name, measures)
        return value is None or _OPERATORS[self.sign](value, self.bound)


class Objective(NamedTuple):
    """The measure that is to be least, or greatest, among the policies that meet all
    requirements."""

    name: str
    requirements: tuple[Requirement, ...] = ()

    def value(self, measures: Measures) -> float | None:
        """As measured."""
        return value_of(self.name, measures)

    def is_met(self, measures: Measures) -> bool:
        """All requirements hold."""
        return all(requirement.holds(measures) for requirement in self.requirements)

    def loss(self, measures: Measures) -> float:
        """The less, the better; infinite where there is no value."""
        value = self.value(measures)
        if value is None:
            return float("inf")
        return -value if self.name in _MORE_IS_BETTER else value

    def rank(self, measures: Measures) -> tuple[bool, float, int]:
        """The least is best; of two alike the one with fewer slots."""
        return not self.is_met(measures), self.loss(measures), measures.slots

    def __str__(self) -> str:
        aim = "greatest" if self.name in _MORE_IS_BETTER else "least"
        required = [f"{name} {sign} {bound:g}" for name, sign, bound in self.requirements]
        return f"{aim} {self.name}" + (f" with {' and '.join(required)}" if required else "")


def parse_objective(name: str, requirements: Sequence[str] = ()) -> Objective:
    """`wait_p99`, and requirements such as `utilisation >= 0.8` or `wait_p99 <= 60s`. Raises
    ConfigurationError."""
    return Objective(_known("--objective", name), tuple(map(_requirement, requirements)))


def value_of(name: str, measures: Measures) -> float | None:
    """A measure by its name, with or without `_us`."""
    value: float | None = getattr(measures, _FIELDS[name.removesuffix("_us")])
    return value


def is_time(name: str) -> bool:
    """It counts microseconds."""
    return _FIELDS[name].endswith("_us")


class Interval(msgspec.Struct, frozen=True):
    """Where 95 of 100 samples lie."""

    low: float
    high: float


def interval(values: Sequence[float]) -> Interval | None:
    """From the 2.5th to the 97.5th percentile of the samples; None: fewer than two."""
    if len(values) < 2:
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))


def verdict(losses: Sequence[float], baseline: Sequence[float]) -> str:
    """Of a policy against another on the same samples, one by one.

    `better`: the intervals do not even overlap. `better in pairs`: they do, since samples differ,
    but the interval of the difference on the same sample lies below 0. Else `worse`, `worse in
    pairs` or `not told apart`. A sample on which one of them has no value, an infinite loss, is
    left out.
    """
    both = [pair for pair in zip(losses, baseline, strict=True) if all(map(isfinite, pair))]
    ours, theirs = interval([one for one, _ in both]), interval([other for _, other in both])
    pairs = interval([one - other for one, other in both])
    if ours is None or theirs is None or pairs is None:
        return "no samples"
    if ours.high < theirs.low:
        return "better"
    if ours.low > theirs.high:
        return "worse"
    if pairs.high < 0:
        return "better in pairs"
    return "worse in pairs" if pairs.low > 0 else "not told apart"


def _requirement(text: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(
            f"--require {text!r}: use a measure, <= or >=, and a number, as in 'wait_p99 <= 60s'"
        )
    name, sign, number, unit = found.groups()
    name = _known("--require", name)
    try:
        bound = float(number)
    except ValueError:
        raise ConfigurationError(f"--require {text!r}: {number!r} is no number") from None
    if is_time(name) != (unit is not None):
        cure = (
            "is a time: give it us, ms, s, m or h"
            if is_time(name)
            else "is no time: leave the unit out"
        )
        raise ConfigurationError(f"--require {text!r}: {name} {cure}")
    return Requirement(name, sign, bound * _UNITS[unit or "us"])


def _known(option: str, name: str) -> str:
    plain = name.strip().removesuffix("_us")
    if plain not in AIMS:
        raise ConfigurationError(f"{option} {name!r}: unknown measure; known: {', '.join(AIMS)}")
    return plain
