"""Waits of tasks and keys, in polls; 1 is the first poll after the arrival."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from math import ceil

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of waits, in polls."""

    p50: float
    p90: float
    p99: float
    most: float


class Waits:
    """Waits, collected by key."""

    def __init__(self) -> None:
        self._by_key: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))

    def add(self, key: str, wait: int) -> None:
        """Record the wait of a picked task."""
        self._by_key[key].append(wait)

    def of_tasks(self) -> Percentiles | None:
        """Return percentiles over all tasks; None if no task was picked up."""
        return percentiles([wait for waits in self._by_key.values() for wait in waits])

    def of_keys(self) -> Percentiles | None:
        """Return percentiles over all keys, each counted once with the mean wait of its tasks."""
        return percentiles(list(self.means().values()))

    def of(self, key: str) -> Percentiles | None:
        """Return percentiles over the tasks of the key; None if none was picked up."""
        return percentiles(self._by_key[key]) if key in self._by_key else None

    def means(self) -> dict[str, float]:
        """Return the mean wait of each key."""
        return {key: sum(waits) / len(waits) for key, waits in self._by_key.items()}


def percentiles(waits: Sequence[float]) -> Percentiles | None:
    """Return nearest-rank percentiles; None without any wait."""
    if not waits:
        return None
    ordered = sorted(waits)
    ranks = (ceil(share * len(ordered)) for share in (0.5, 0.9, 0.99, 1.0))
    return Percentiles(*(round(ordered[rank - 1], 3) for rank in ranks))
