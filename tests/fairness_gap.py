"""Fairness of an order to keys that had work waiting: Jain's index, and the gap compared with the
bound of fair queueing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple


class PriorityFlow(NamedTuple):
    """A key at one priority. Only tasks of the same priority compete."""

    priority: int
    key: str


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
