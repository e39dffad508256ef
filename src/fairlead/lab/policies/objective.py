"""The objective: one measure to optimise, and requirements that must hold. A study fixes the
objective before the replay, so that nobody chooses the measure that suits a result."""

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
        """Return whether the requirement holds; a requirement on a measure without a value
        holds."""
        value = value_of(self.name, measures)
        return value is None or _OPERATORS[self.sign](value, self.bound)


class Objective(NamedTuple):
    """The measure to minimise or maximise among the policies that meet all requirements."""

    name: str
    requirements: tuple[Requirement, ...] = ()

    def value(self, measures: Measures) -> float | None:
        """Return the measure of the objective."""
        return value_of(self.name, measures)

    def is_met(self, measures: Measures) -> bool:
        """Return whether all requirements hold."""
        return all(requirement.holds(measures) for requirement in self.requirements)

    def loss(self, measures: Measures) -> float:
        """Return a number that is smaller for better results; infinite if there is no value."""
        value = self.value(measures)
        if value is None:
            return float("inf")
        return -value if self.name in _MORE_IS_BETTER else value

    def rank(self, measures: Measures) -> tuple[bool, float, int]:
        """Return a sort key, the best first; of equal results, the one with fewer slots."""
        return not self.is_met(measures), self.loss(measures), measures.slots

    def __str__(self) -> str:
        aim = "greatest" if self.name in _MORE_IS_BETTER else "least"
        required = [f"{name} {sign} {bound:g}" for name, sign, bound in self.requirements]
        return f"{aim} {self.name}" + (f" with {' and '.join(required)}" if required else "")


def parse_objective(name: str, requirements: Sequence[str] = ()) -> Objective:
    """Parse a measure such as `wait_p99`, and requirements such as `utilisation >= 0.8` or
    `wait_p99 <= 60s`. Raise ConfigurationError for unknown measures or malformed requirements."""
    return Objective(_known("--objective", name), tuple(map(_requirement, requirements)))


def value_of(name: str, measures: Measures) -> float | None:
    """Return a measure by its name, with or without `_us`."""
    value: float | None = getattr(measures, _FIELDS[name.removesuffix("_us")])
    return value


def is_time(name: str) -> bool:
    """Return whether the measure is a time in microseconds."""
    return _FIELDS[name].endswith("_us")


class Interval(msgspec.Struct, frozen=True):
    """The range of the middle 95 % of samples."""

    low: float
    high: float


def interval(values: Sequence[float]) -> Interval | None:
    """Return the 2.5th and 97.5th percentile of the samples; None for fewer than two."""
    if len(values) < 2:
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))


def verdict(losses: Sequence[float], baseline: Sequence[float]) -> str:
    """Compare a policy with another on the same samples, one by one.

    Return "better" or "worse" if the interval of the difference on the same sample lies on one side
    of 0, else "indistinguishable". A sample without a value, which is an infinite loss, is left
    out.
    """
    differences = interval(
        [one - other for one, other in zip(losses, baseline, strict=True) if isfinite(one - other)]
    )
    if differences is None:
        return "no samples"
    if differences.high < 0:
        return "better"
    return "worse" if differences.low > 0 else "indistinguishable"


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
            "is a time: add the unit us, ms, s, m or h"
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
