"""How long tasks wait before `slots` workers: Erlang's formula, and Allen and Cunneen's correction
for any distributions.

Exact for Poisson arrivals and exponential runs (M/M/c; Erlang 1917). For others the mean wait is
scaled by (cv2_arrival + cv2_service) / 2 (Allen, Probability, Statistics and Queueing Theory, 2nd
ed. 1990, section 5.3.4), and whoever waits is taken to wait an exponential time of that mean. Times
in seconds, rates per second.
"""

from __future__ import annotations

from math import exp, floor, inf, isfinite
from typing import NamedTuple


class Work(NamedTuple):
    """What arrives at a queue, and what it takes."""

    rate: float
    """Tasks a second."""
    mean_s: float
    """Of a run."""
    cv2_arrival: float = 1.0
    """Squared coefficient of variation of the times between arrivals; 1: Poisson."""
    cv2_service: float = 1.0
    """The same of runs; 1: exponential."""

    @property
    def load(self) -> float:
        """Slots that are busy on average (erlang)."""
        return self.rate * self.mean_s

    @property
    def variability(self) -> float:
        """Factor of Allen and Cunneen."""
        return (self.cv2_arrival + self.cv2_service) / 2


def erlang_c(slots: int, load: float) -> float:
    """Probability that a task has to wait, 0 to 1; 1 when the load (erlang) is no less than the
    slots.

    By the recursion of Erlang's B, which adds and multiplies numbers between 0 and 1 only: no
    factorial, no overflow. Raises ValueError for fewer slots than 1, or a load that is negative or
    no number."""
    _require(slots >= 1, f"slots {slots}: at least 1")
    _require(isfinite(load) and load >= 0, f"load {load}: a number not below 0")
    blocked = 1.0
    for n in range(1, slots + 1):
        blocked = _more(blocked, n, load)
    return _waiting(blocked, slots, load)


def mean_wait(slots: int, work: Work) -> float:
    """Seconds that a task waits on average; infinite when the slots cannot keep up."""
    spare = slots - work.load
    if spare <= 0:
        return inf
    return erlang_c(slots, work.load) * work.mean_s / spare * work.variability


def late(slots: int, work: Work, wait_s: float) -> float:
    """Part of the tasks that wait longer than `wait_s`, 0 to 1."""
    return _late(erlang_c(slots, work.load), slots, work, wait_s)


def slots_for(work: Work, wait_s: float, quantile: float) -> int:
    """The least slots with which the part `quantile` of the tasks waits no longer than `wait_s`; 0
    when nothing arrives. Raises ValueError for a quantile that is not between 0 and 1, or a
    negative wait."""
    _require(0 < quantile < 1, f"quantile {quantile}: between 0 and 1, as 0.95")
    _require(wait_s >= 0, f"wait {wait_s}: not below 0")
    load = work.load
    _require(isfinite(load) and load >= 0, f"load {load}: a number not below 0")
    if load == 0:
        return 0
    blocked, slots, least = 1.0, 0, floor(load) + 1
    while True:
        slots += 1
        blocked = _more(blocked, slots, load)
        if (
            slots >= least
            and _late(_waiting(blocked, slots, load), slots, work, wait_s) <= 1 - quantile
        ):
            return slots


def _more(blocked: float, slots: int, load: float) -> float:
    """Erlang's B with one slot more."""
    return load * blocked / (slots + load * blocked)


def _waiting(blocked: float, slots: int, load: float) -> float:
    if load >= slots:
        return 1.0
    return blocked / (1 - load / slots * (1 - blocked))


def _late(waiting: float, slots: int, work: Work, wait_s: float) -> float:
    spare = slots - work.load
    if spare <= 0:
        return 1.0
    if work.variability == 0:
        return waiting if wait_s == 0 else 0.0
    return waiting * exp(-spare / work.mean_s * wait_s / work.variability)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
