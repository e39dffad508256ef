"""Usual run times: how long a run may take before a person should look at it. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence

from fairlead.clock import MICROS

ENOUGH = 20
"""Least number of run times that show what is usual."""
LATEST = 200
"""Number of run times of a name that are remembered."""
TIMES = 10
"""Multiple of the 99th percentile above which a run takes far longer than usual."""
LEAST = 60 * MICROS
"""Least time, in microseconds, that is far longer than usual."""


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the least of these ascending numbers that so many of a hundred do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def patience(run_times: Collection[int]) -> int | None:
    """Return the microseconds after which a run takes far longer than these: ten times their 99th
    percentile, at least a minute. Return None for fewer than 20."""
    if len(run_times) < ENOUGH:
        return None
    return max(LEAST, TIMES * percentile(sorted(run_times), 99))


class UsualTimes:
    """Latest run times of each name, in microseconds."""

    def __init__(self) -> None:
        self._latest: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=LATEST))

    def ended(self, name: str, run_time: int) -> None:
        """Remember the time of a run."""
        self._latest[name].append(run_time)

    def patience(self, name: str) -> int | None:
        """Return the `patience` with runs of this name."""
        return patience(self._latest[name])
