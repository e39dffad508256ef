"""The verdict on a published version after its canary window: keep the version, or roll it back
when waits or shares became too much worse."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import msgspec

from fairlead.pipeline.tuning.guard_rails import Guards


class Wait(NamedTuple):
    """Wait of a key's tasks for a worker."""

    tasks: int
    p99: float
    """99th percentile in seconds."""


class Measured(msgspec.Struct, frozen=True):
    """Measurements of a queue over some full hours."""

    waits: Mapping[str, Wait]
    """Waits of the keys that the version did not change."""
    misallocated: float | None
    """Fraction of the worker time that keys received beyond the shares to which they are entitled,
    0 to 1; None if there was no worker time."""
    busy: float = 0.0
    """Worker-seconds of all keys."""
    kept_waiting: float = 0.0
    """Worker-seconds that the keys with a limit in the version could have used in addition; 0 if it
    has no limits."""
    others: Wait | None = None
    """Wait over all keys without a limit in the version; None if there were none."""


class Verdict(NamedTuple):
    """Verdict on a version after its canary window."""

    is_kept: bool
    why: str


def judge(before: Measured, after: Measured, guards: Guards) -> Verdict:
    """Return the verdict on a version. The version is rolled back if an unchanged key waits much
    longer, if more worker time is misallocated, or if limits leave workers unused and no key waits
    less."""
    for key, wait in after.waits.items():
        earlier = before.waits.get(key)
        # The p99 of a few tasks is the wait of one of them, so it is not compared.
        if earlier is None or min(earlier.tasks, wait.tasks) < guards.least_tasks:
            continue
        longer = wait.p99 - earlier.p99
        if wait.p99 > guards.worse_wait * earlier.p99 and longer > guards.worse_wait_seconds:
            return Verdict(
                False,
                f"unchanged key {key!r} waits {wait.p99:.1f} s instead of {earlier.p99:.1f} s"
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
            f"{unused / before.busy:.0%} less worker time is used while tasks of limited keys wait,"
            " and tasks of other keys do not wait less",
        )
    if before.misallocated is None or after.misallocated is None:
        return Verdict(True, "no worker time before or after the version to compare")
    if after.misallocated > before.misallocated + guards.worse_share:
        return Verdict(
            False,
            f"{after.misallocated:.0%} of the worker time is misallocated instead of"
            f" {before.misallocated:.0%}",
        )
    return Verdict(
        True,
        f"{after.misallocated:.0%} of the worker time is misallocated,"
        f" {before.misallocated:.0%} before the version",
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
    """Divide the capacity among the keys in proportion to `due`, their shares, but give no key more
    than its demand. `demand`, `capacity` and the result are in worker-seconds. The sum of the
    result is the capacity, or the total demand if that is less."""
    by_relative_demand = sorted(demand, key=lambda key: demand[key] / due[key])
    # Sum from the end, so that rounding never leaves the last keys without a part.
    parts = list(accumulate(due[key] for key in reversed(by_relative_demand)))
    filled: dict[str, float] = {}
    left = capacity
    for key in by_relative_demand:
        filled[key] = min(demand[key], left * due[key] / parts.pop())
        left = max(0.0, left - filled[key])
    return filled


def misallocated(
    busy: Mapping[str, float], demand: Mapping[str, float], due: Mapping[str, float]
) -> float:
    """Return the worker-seconds that keys received beyond the shares to which they are entitled."""
    due_seconds = entitled(demand, due, sum(busy.values()))
    return sum(max(0.0, busy[key] - due_seconds[key]) for key in busy)
