"""The canary window of a published version: what became worse, and how much worse is too much."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import msgspec

from fairlead.core.tuning.guard_rails import Guards


class Wait(NamedTuple):
    """Wait of a key's tasks for a worker."""

    tasks: int
    p99: float
    """99th percentile in seconds."""


class Measured(msgspec.Struct, frozen=True):
    """Measurements of a queue over some full hours."""

    waits: Mapping[str, Wait]
    """Waits of the keys that the version did not change."""
    astray: float | None
    """Fraction of the worker time that went to other keys than those it was due to, 0 to 1; None:
    there was no worker time."""
    busy: float = 0.0
    """Worker-seconds of all keys."""
    kept_waiting: float = 0.0
    """Worker-seconds that the keys with a limit in the version could have used in addition; 0 if it
    has no limits."""
    others: Wait | None = None
    """Wait over all keys without a limit in the version; None if there were none."""


class Verdict(NamedTuple):
    """Verdict on a version."""

    is_kept: bool
    why: str


def judge(before: Measured, after: Measured, guards: Guards) -> Verdict:
    """Judge a version. Roll it back if a key that it did not change waits much longer, if the
    worker time is further from what is due, or if limits leave workers unused and no key gains."""
    for key, wait in after.waits.items():
        earlier = before.waits.get(key)
        # The p99 of a few tasks is the wait of one of them, so it is not compared.
        if earlier is None or min(earlier.tasks, wait.tasks) < guards.least_tasks:
            continue
        longer = wait.p99 - earlier.p99
        if wait.p99 > guards.worse_wait * earlier.p99 and longer > guards.worse_wait_seconds:
            return Verdict(
                False,
                f"key {key!r}, not touched, waits {wait.p99:.1f} s instead of {earlier.p99:.1f} s"
                " (p99)",
            )
    unused = before.busy - after.busy
    if (
        unused > guards.worse_use * before.busy
        and after.kept_waiting >= unused
        and not _wait_less(before, after, guards)
    ):
        return Verdict(
            False,
            f"{unused / before.busy:.0%} less of the workers is used, tasks of keys with a limit"
            " wait, and those of the others wait no less",
        )
    if before.astray is None or after.astray is None:
        return Verdict(True, "nothing to compare: no worker time before or after it")
    if after.astray > before.astray + guards.worse_share:
        return Verdict(
            False,
            f"{after.astray:.0%} of the worker time goes astray instead of {before.astray:.0%}",
        )
    return Verdict(
        True, f"{after.astray:.0%} of the worker time goes astray, {before.astray:.0%} before it"
    )


def _wait_less(before: Measured, after: Measured, guards: Guards) -> bool:
    """Return whether the keys without a limit wait less; False if that is unknown."""
    if before.others is None or after.others is None:
        return False
    if min(before.others.tasks, after.others.tasks) < guards.least_tasks:
        return False
    return after.others.p99 * (1 + guards.dead_band) < before.others.p99


def entitled(
    demand: Mapping[str, float], due: Mapping[str, float], capacity: float
) -> dict[str, float]:
    """Divide the capacity among the keys by what is due to each, none above its demand; all in
    worker-seconds. The sum is the capacity, or the demand if that is less."""
    thirstiest_last = sorted(demand, key=lambda key: demand[key] / due[key])
    # Summed from the end, so that rounding never leaves the last keys without a part.
    parts = list(accumulate(due[key] for key in reversed(thirstiest_last)))
    filled: dict[str, float] = {}
    left = capacity
    for key in thirstiest_last:
        filled[key] = min(demand[key], left * due[key] / parts.pop())
        left = max(0.0, left - filled[key])
    return filled


def astray(
    busy: Mapping[str, float], demand: Mapping[str, float], due: Mapping[str, float]
) -> float:
    """Return the fraction of the worker-seconds spent that keys got beyond what was due to them."""
    mine = entitled(demand, due, sum(busy.values()))
    return sum(max(0.0, busy[key] - mine[key]) for key in busy)
