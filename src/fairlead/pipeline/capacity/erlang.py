"""Waiting time of tasks that share some slots: Erlang's formula, with the correction of Allen and
Cunneen for any distribution.

The formula is exact for Poisson arrivals and exponential runs (M/M/c; Erlang 1917). For other
distributions the mean wait is scaled by (cv2_arrival + cv2_service) / 2 (Allen, Probability,
Statistics and Queueing Theory, 2nd ed. 1990, section 5.3.4), and the wait of a task that has to
wait is assumed to be exponential with that mean. Times are in seconds, rates per second.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import exp
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


def waiting(load: float) -> Iterator[float]:
    """Yield the probability that a task has to wait with 1, 2, 3, ... slots, 0 to 1; 1 while the
    load (erlang) reaches the slots.

    The recursion of Erlang's B only adds and multiplies numbers between 0 and 1, so it needs no
    factorial and does not overflow.
    """
    blocked = 1.0
    for slots in count(1):
        blocked = load * blocked / (slots + load * blocked)
        yield 1.0 if load >= slots else blocked / (1 - load / slots * (1 - blocked))


def late(waits: float, slots: int, work: Work, wait_s: float) -> float:
    """Return the share of tasks, 0 to 1, that wait longer than `wait_s` seconds, from the
    probability `waits` that a task has to wait."""
    spare = slots - work.load
    if spare <= 0:
        return 1.0
    if work.variability == 0:
        return waits if wait_s == 0 else 0.0
    return waits * exp(-spare / work.mean_s * wait_s / work.variability)


def slots_for(work: Work, wait_s: float, quantile: float) -> int:
    """Return the fewest slots with which the share `quantile` of the tasks, above 0 and below 1,
    waits at most `wait_s` seconds, 0 or more; 0 slots when no task arrives."""
    load = work.load
    if load == 0:
        return 0
    return next(
        slots
        for slots, waits in enumerate(waiting(load), 1)
        if slots > load and late(waits, slots, work, wait_s) <= 1 - quantile
    )
