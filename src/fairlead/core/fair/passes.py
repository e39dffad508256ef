"""Passes by start-time fair queueing: each key advances by its stride for every task, and the
lowest pass goes first.

Goyal, Vin and Cheng 1996, "Start-time Fair Queuing". For keys that stay backlogged, served counts
divided by weight never differ by more than 1/w_f + 1/w_m tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from fairlead.core.fair.counters import Counters
from fairlead.model import RunTimesRecord

STRIDE_SCALE = 1_000_000


@lru_cache(1000)
def stride(weight: float) -> int:
    """Return the virtual time of one task of this weight (dimensionless, >= 1). Waldspurger 1995,
    section 3."""
    # Integers, because the stores compare passes, and floats would compare differently.
    return max(1, round(STRIDE_SCALE / weight))


class Passes:
    """Gives each task of a lane its pass: the later of the lane's virtual time and the key's next
    pass."""

    def __init__(self, counters: Counters, weights: Mapping[str, float] | None = None) -> None:
        self._counters = counters
        # Keep an empty mapping too: weights set later are added to the same object.
        self.weights: Mapping[str, float] = {} if weights is None else weights
        """Weights set at run time, by key, which replace the weights of tasks."""

    def assign(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        """Return the pass of one more task of the key. `weight`, `name`: of the task."""
        pass_ = max(virtual_time, self._counters.next_pass(key))
        self._counters.put(key, pass_ + self.step(key, weight, name), virtual_time)
        return pass_

    def step(self, key: str, weight: float, name: str = "") -> int:
        """Return the virtual time from one task of the key to the next (dimensionless)."""
        return stride(self.weights.get(key, weight))

    def observe(
        self, key: str, weight: float, pass_: int, virtual_time: int, name: str = ""
    ) -> None:
        """Advance the key's next pass beyond a task that an earlier owner has given this pass."""
        next_pass = pass_ + self.step(key, weight, name)
        if next_pass > self._counters.next_pass(key):
            self._counters.put(key, next_pass, virtual_time)

    def ended(self, key: str, weight: float, name: str, cost: int) -> None:
        """Record that a task of the key is done. Ignored here: every task costs the same."""

    def withdraw(self, key: str, name: str) -> None:
        """Record that a task of the key lost its level and will get a new one."""

    def renew(self, key: str, next_pass: int | None, virtual_time: int) -> None:
        """Set the key's next pass after its weight has changed. None: no task of the key waits, so
        its next one comes a step after the virtual time, or sooner."""
        if next_pass is None:
            next_pass = min(self._counters.next_pass(key), virtual_time + self.step(key, 1.0))
        if next_pass > virtual_time or self._counters.next_pass(key) > virtual_time:
            self._counters.put(key, next_pass, virtual_time)

    def next_pass(self, key: str) -> int:
        """Return the key's next pass, or more; 0 if it is unknown."""
        return self._counters.next_pass(key)

    def resume(self, key: str, next_pass: int) -> None:
        """Restore the next pass of the key from an earlier owner."""
        self._counters.put(key, max(next_pass, self._counters.next_pass(key)), 0)

    def heaviest(
        self, most: int, unstored: Iterable[tuple[str, int]] = ()
    ) -> list[tuple[str, int]]:
        """Return (key, next pass) of the keys furthest ahead, to save for the next owner.

        `unstored`: (key, pass) of tasks whose levels end with this owner. The next owner levels
        them again, so their keys are not charged for them.
        """
        first: dict[str, int] = {}
        for key, pass_ in unstored:
            first[key] = min(pass_, first.get(key, pass_))
        kept = [
            (key, min(next_pass, first.get(key, next_pass)))
            for key, next_pass in self._counters.heaviest(most)
        ]
        return sorted(kept, key=lambda pair: (-pair[1], pair[0]))

    def run_times(self) -> RunTimesRecord | None:
        """Return the measured run times, for the next owner; None if tasks are counted."""
        return None

    def resume_run_times(self, record: RunTimesRecord) -> None:
        """Restore run times that an earlier owner measured."""
