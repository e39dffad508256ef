"""Waiting time of tasks that share some slots: Erlang's formula, with the correction of Allen and
Cunneen for any distribution.

The formula is exact for Poisson arrivals and exponential runs (M/M/c; Erlang 1917). For other
distributions the mean wait is scaled by (cv2_arrival + cv2_service) / 2 (Allen, Probability,
Statistics and Queueing Theory, 2nd ed. 1990, section 5.3.4), and the wait of a task that has to
wait is assumed to be exponential with that mean. Times are in seconds, rates per second.
"""

from __future__ import annotations

from math import exp, floor, inf, isfinite
from typing import NamedTuple


class Work(NamedTuple):
    """Arrivals and run times of a queue."""

    rate: float
    """Tasks per second."""
    mean_s: float
    """Mean run time, in seconds."""
    cv2_arrival: float = 1.0
    """Squared coefficient of variation of the times between arrivals; 1 for Poisson arrivals."""
    cv2_service: float = 1.0
    """Squared coefficient of variation of the run times; 1 for exponential ones."""

    @property
    def load(self) -> float:
        """Return the mean number of busy slots (erlang)."""
        return self.rate * self.mean_s

    @property
    def variability(self) -> float:
        """Return the correction factor of Allen and Cunneen."""
        return (self.cv2_arrival + self.cv2_service) / 2


def erlang_c(slots: int, load: float) -> float:
    """Return the probability that a task has to wait, 0 to 1; 1 when the load (erlang) reaches the
    slots.

    The recursion of Erlang's B only adds and multiplies numbers between 0 and 1, so it needs no
    factorial and does not overflow. Raise ValueError for less than 1 slot, or a load that is
    negative or not finite.
    """
    _require(slots >= 1, f"slots is {slots}; must be at least 1")
    _require(isfinite(load) and load >= 0, f"load is {load}; must be finite and at least 0")
    blocked = 1.0
    for n in range(1, slots + 1):
        blocked = _with_one_slot_more(blocked, n, load)
    return _wait_probability(blocked, slots, load)


def mean_wait(slots: int, work: Work) -> float:
    """Return the mean wait of a task in seconds; infinite when the slots cannot keep up."""
    spare = slots - work.load
    if spare <= 0:
        return inf
    return erlang_c(slots, work.load) * work.mean_s / spare * work.variability


def late(slots: int, work: Work, wait_s: float) -> float:
    """Return the share of tasks, 0 to 1, that wait longer than `wait_s` seconds. Raise ValueError
    as `erlang_c` does."""
    return _late_share(erlang_c(slots, work.load), slots, work, wait_s)


def slots_for(work: Work, wait_s: float, quantile: float) -> int:
    """Return the fewest slots with which the share `quantile` of the tasks waits at most `wait_s`
    seconds; 0 when no task arrives.

    Raise ValueError for a quantile that is not between 0 and 1, a negative wait, or a load that is
    negative or not finite.
    """
    _require(0 < quantile < 1, f"quantile is {quantile}; must be between 0 and 1, such as 0.95")
    _require(wait_s >= 0, f"wait_s is {wait_s}; must be at least 0")
    load = work.load
    _require(isfinite(load) and load >= 0, f"load is {load}; must be finite and at least 0")
    if load == 0:
        return 0
    blocked, slots, least = 1.0, 0, floor(load) + 1
    while True:
        slots += 1
        blocked = _with_one_slot_more(blocked, slots, load)
        wait_probability = _wait_probability(blocked, slots, load)
        if slots >= least and _late_share(wait_probability, slots, work, wait_s) <= 1 - quantile:
            return slots


def _with_one_slot_more(blocked: float, slots: int, load: float) -> float:
    """Return Erlang's B for `slots`, from its value for one slot fewer."""
    return load * blocked / (slots + load * blocked)


def _wait_probability(blocked: float, slots: int, load: float) -> float:
    if load >= slots:
        return 1.0
    return blocked / (1 - load / slots * (1 - blocked))


def _late_share(wait_probability: float, slots: int, work: Work, wait_s: float) -> float:
    spare = slots - work.load
    if spare <= 0:
        return 1.0
    if work.variability == 0:
        return wait_probability if wait_s == 0 else 0.0
    return wait_probability * exp(-spare / work.mean_s * wait_s / work.variability)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
