"""Fairness of an order to keys that had work waiting: Jain's index, and the gap compared with the
bound of fair queueing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple


class PriorityFlow(NamedTuple):
    """A key at one priority. Only tasks of the same priority compete."""

    priority: int
    key: str


class Jain:
    """Jain's index over service / weight, (sum x)^2 / (n sum x^2): 1 is fair, 1/n gives everything
    to one key.

    The index is taken over windows of a fixed number of pick-ups, for the keys that had a task
    waiting throughout the window.
    """

    def __init__(self, weights: Mapping[str, float], window: int) -> None:
        self.window = window
        """Pick-ups in a window."""
        self.indices: list[float] = []
        """The index of each window in which at least two keys were waiting throughout."""
        self._weights = weights
        self._waiting: Counter[str] = Counter()
        self._throughout: set[str] = set()
        self._served: Counter[str] = Counter()
        self._picked = 0

    def arrived(self, key: str) -> None:
        """Count a task of the key that begins to wait."""
        self._waiting[key] += 1

    def picked(self, key: str) -> None:
        """Count a task of the key that was picked up."""
        if self._picked == 0:
            self._throughout = set(self._waiting)
        self._picked += 1
        self._served[key] += 1
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]
            self._throughout.discard(key)
        if self._picked == self.window:
            if len(self._throughout) > 1:
                self.indices.append(
                    jain([self._served[key] / self._weights[key] for key in self._throughout])
                )
            self._served.clear()
            self._picked = 0


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of at least one share, all of them 0 or greater."""
    return (
        sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
        if any(shares)
        else 1.0
    )


class FairnessGap:
    """The largest difference in service / weight between two flows over any interval in which both
    had work waiting, as a multiple of the bound 1 / w_f + 1 / w_m (Goyal, Vin and Cheng 1996). One
    fair partition stays at or below 1."""

    def __init__(self, flows: Sequence[tuple[PriorityFlow, float]]) -> None:
        """`flows`: the flows with their weights."""
        self.largest = 0.0
        self.between: tuple[PriorityFlow, PriorityFlow] | None = None
        self._flows = [flow for flow, _ in flows]
        self._step = [1 / weight for _, weight in flows]
        self._index = {flow: index for index, flow in enumerate(self._flows)}
        self._waiting = [0] * len(flows)
        self._lead = dict.fromkeys(permutations(range(len(flows)), 2), 0.0)
        """Lead of the first flow of a pair over the second in service / weight. The lead begins at
        0 when both have work, and never falls below 0."""
        self._rivals = [
            [
                other
                for other in range(len(flows))
                if self._flows[other].priority == flow.priority and other != index
            ]
            for index, flow in enumerate(self._flows)
        ]

    def arrived(self, flow: PriorityFlow) -> None:
        """Count a task of the flow that begins to wait."""
        index = self._index.get(flow)
        if index is None:
            return
        self._waiting[index] += 1
        if self._waiting[index] == 1:
            for other in self._rivals[index]:
                self._lead[index, other] = self._lead[other, index] = 0.0

    def picked(self, flow: PriorityFlow) -> None:
        """Count a task of the flow that was picked up."""
        index = self._index.get(flow)
        if index is None:
            return
        step = self._step[index]
        for other in self._rivals[index]:
            if not self._waiting[other]:
                continue
            lead = self._lead[index, other] = self._lead[index, other] + step
            self._lead[other, index] = max(0.0, self._lead[other, index] - step)
            gap = lead / (step + self._step[other])
            if gap > self.largest:
                self.largest, self.between = gap, (flow, self._flows[other])
        self._waiting[index] -= 1
