"""How long tasks and keys waited, in polls: 1 is the first poll after the arrival."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """Of waits, in polls."""

    p50: float
    p90: float
    p99: float
    most: float


class Waits:
    """Gathers them by key."""

    def __init__(self) -> None:
        self._by_key: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))

    def add(self, key: str, wait: int) -> None:
        """A task of the key was picked up after so many polls."""
        self._by_key[key].append(wait)

    def of_tasks(self) -> Percentiles | None:
        """Over all tasks; None: none was picked up."""
        return percentiles([wait for waits in self._by_key.values() for wait in waits])

    def of_keys(self) -> Percentiles | None:
        """Over all keys, each counted once with the mean wait of its tasks."""
        return percentiles(list(self.means().values()))

    def of(self, key: str) -> Percentiles | None:
        """Over the tasks of the key."""
        return percentiles(self._by_key[key]) if key in self._by_key else None

    def means(self) -> dict[str, float]:
        """By key, the mean wait."""
        return {key: sum(waits) / len(waits) for key, waits in self._by_key.items()}


def percentiles(waits: Sequence[float]) -> Percentiles | None:
    """By nearest rank."""
    if not waits:
        return None
    ordered = sorted(waits)
    last = len(ordered) - 1
    return Percentiles(*(round(ordered[round(last * share)], 3) for share in (0.5, 0.9, 0.99, 1.0)))
