"""Passes: start-time fair queueing. Each key moves on by its stride for every task; the lowest pass
goes first.

Goyal, Vin and Cheng 1996, "Start-time Fair Queuing". For keys that are backlogged throughout,
counts served divided by weight never differ by more than 1/w_f + 1/w_m tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from fairlead.core.fair.counters import Counters
from fairlead.model import RunTimesRecord

STRIDE_SCALE = 1_000_000


@lru_cache(1000)
def stride(weight: float) -> int:
    """Virtual time one task of this weight takes (dimensionless, >= 1). Waldspurger 1995, section
    3."""
    # Integer on purpose: passes are compared by the store, which has no floats to disagree about.
    return max(1, round(STRIDE_SCALE / weight))


class Passes:
    """Gives each task of a lane its pass: the later of the lane's virtual time and the next pass of
    the task's key."""

    def __init__(self, counters: Counters, weights: Mapping[str, float] | None = None) -> None:
        self._counters = counters
        # An empty mapping is kept too: weights that are set later come into the same one.
        self.weights: Mapping[str, float] = {} if weights is None else weights
        """Weights set at run time, by key; they count instead of the task's own."""

    def give(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        """The pass of one more task of the key. `weight`: the task's own; `name`: of the task."""
        pass_ = max(virtual_time, self._counters.next_pass(key))
        self._counters.put(key, pass_ + stride(self.weights.get(key, weight)), virtual_time)
        return pass_

    def saw(self, key: str, weight: float, pass_: int, virtual_time: int, name: str = "") -> None:
        """A task of the key has this pass already, given by an earlier owner: the key's next one
        comes after it."""
        following = pass_ + stride(self.weights.get(key, weight))
        if following > self._counters.next_pass(key):
            self._counters.put(key, following, virtual_time)

    def ended(self, key: str, weight: float, name: str, cost: int) -> None:
        """A task of the key is through. Every task has been charged the same, whatever it took."""

    def left(self, key: str, name: str) -> None:
        """A task of the key gives its place up and will be given another one."""

    def resume(self, key: str, following: int) -> None:
        """The next pass of the key as an earlier owner left it."""
        self._counters.put(key, max(following, self._counters.next_pass(key)), 0)

    def heaviest(
        self, most: int, unplaced: Iterable[tuple[str, int]] = ()
    ) -> list[tuple[str, int]]:
        """(key, next pass) of those furthest ahead, to be kept for the next owner.

        `unplaced`: (key, pass) of tasks whose place will not outlive this owner; they will be given
        one anew, so their keys are not charged for them.
        """
        first: dict[str, int] = {}
        for key, pass_ in unplaced:
            first[key] = min(pass_, first.get(key, pass_))
        kept = [
            (key, min(following, first.get(key, following)))
            for key, following in self._counters.heaviest(most)
        ]
        return sorted(kept, key=lambda pair: (-pair[1], pair[0]))

    def run_times(self) -> RunTimesRecord | None:
        """What has been learnt of run times, for the next owner; None: nothing, tasks are
        counted."""
        return None

    def resume_run_times(self, record: RunTimesRecord) -> None:
        """What an earlier owner had learnt."""
