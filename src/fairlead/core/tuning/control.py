"""The control law of weights: the weight that each key should have, from its use of the workers.
One pure function, `propose`.

A fair queue shares dispatches by weight, so a key whose tasks run long gets more of the workers
than its weight says. With weight w and mean run time r, a key gets worker time in proportion to
w r. Let d be the share of worker time to which the key is entitled: then the right weight is d / r.
The guard rails bound the published weight; docs/how-to/tune.md explains each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from fairlead.core.tuning.guard_rails import Guards, Situation, holds
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

_HALVINGS = 7
"""Half-lives after which use counts for less than a hundredth and need not be read."""

_ROUNDING = 1e-6

_HOUR = 3600.0


class Used(NamedTuple):
    """Use of workers by a key in one time window."""

    age: float
    """Seconds from the end of the window until now."""
    busy: float
    """Worker-seconds."""
    tasks: int
    """Number of dispatches."""
    seconds: float = _HOUR
    """Length of the window in seconds."""
    asked: float = 0.0
    """Worker-seconds that the key could have used; infinite if it had tasks waiting all the
    time."""
    peak: float = 0.0
    """Workers that the key had at once, on all nodes, in its busiest minute."""
    waited: bool = False
    """Whether the key had tasks waiting throughout some minute."""


class Key(msgspec.Struct, frozen=True):
    """A fairness key of a queue, with its use."""

    due: float
    """Share of the worker time to which the key is entitled, relative to the shares of other keys:
    from its contract, or the weight of its tasks."""
    now: float
    """Weight in force today."""
    use: Sequence[Used] = ()
    fixed: str | None = None
    """Reason why the weight of this key may not be tuned; None if it may."""
    limit: int | None = None
    """Slots of each node that the key may hold today; None for no limit."""


class Change(msgspec.Struct, frozen=True):
    """Change of the weight of a key."""

    fairness_key: str
    now: float
    raw: float
    """Computed weight."""
    guarded: float
    """Weight within the guard rails, which may be published."""
    reason: str
    is_tuned: bool
    """Whether a weight was computed; if not, `raw` is the weight of today."""


class Proposal(msgspec.Struct, frozen=True):
    """Result of `propose`."""

    changes: list[Change]
    """Changes of all given keys, in their order."""
    holds: list[str]
    """Reasons why nothing may be published now. If there are any, each `guarded` is the weight of
    today."""

    @property
    def is_change(self) -> bool:
        """Whether publishing it would change a weight."""
        return any(change.guarded != change.now for change in self.changes)


def horizon(guards: Guards) -> float:
    """Return the age in seconds beyond which use is not worth reading."""
    return _HALVINGS * guards.half_life


def propose(keys: Mapping[str, Key], situation: Situation, guards: Guards) -> Proposal:
    """Return the weights that give each key its share, raw and guarded, with reasons.

    The guarded weights have the same sum as those of today; each lies within a step of today's, and
    within the bounds unless today's does not. Keys inside the dead band move only to keep the sum.
    No weight changes while there are reasons to hold.
    """
    means = {name: _mean_run(key.use, guards.half_life) for name, key in keys.items()}
    not_tuned = {
        name: why for name, key in keys.items() if (why := why_not_tuned(key, guards)) is not None
    }
    tuned = {name: key for name, key in keys.items() if name not in not_tuned}
    raw = _raw(tuned, means, guards)
    reached = _guarded(tuned, raw, guards)
    held = holds(situation, guards)
    changes = []
    for name, key in keys.items():
        if name in not_tuned:
            changes.append(Change(name, key.now, key.now, key.now, not_tuned[name], False))
            continue
        guarded = key.now if held else reached[name]
        reason = "held" if held else _reason(key, raw[name], guarded, guards)
        changes.append(Change(name, key.now, raw[name], guarded, reason, True))
    return Proposal(changes, held)


def decay(age: float, half_life: float) -> float:
    """Return how much use from `age` seconds ago counts, 0 to 1."""
    return math.exp2(-max(0.0, age) / half_life)


class _Mean(NamedTuple):
    tasks: float
    """Decayed number of tasks."""
    busy: float
    """Decayed worker-seconds."""


def _mean_run(use: Sequence[Used], half_life: float) -> _Mean:
    tasks = busy = 0.0
    for window in use:
        counts = decay(window.age, half_life)
        tasks += window.tasks * counts
        busy += window.busy * counts
    return _Mean(tasks, busy)


def why_not_tuned(key: Key, guards: Guards) -> str | None:
    """Return why nothing is computed for the key, or None if it is tuned."""
    if key.fixed is not None:
        return key.fixed
    tasks = sum(window.tasks for window in key.use)
    if tasks < guards.least_tasks:
        return f"too little data: {tasks} tasks, {guards.least_tasks} needed"
    seconds = sum(window.seconds for window in key.use if window.tasks)
    if seconds < guards.least_time:
        return (
            f"too little data: {seconds / _HOUR:.1f} h with tasks, {guards.least_time / _HOUR:.1f}"
            " h needed"
        )
    return None


def _raw(tuned: Mapping[str, Key], means: Mapping[str, _Mean], guards: Guards) -> dict[str, float]:
    """Return due / mean run, scaled to the sum of today's weights, so that the keys that are not
    changed keep their part of the dispatches. A common factor, such as the median run time, would
    cancel out."""
    tasks, busy = (
        (sum(numbers) for numbers in zip(*means.values(), strict=True)) if means else (0.0, 0.0)
    )
    if not busy or not tasks:
        return {name: key.now for name, key in tuned.items()}
    mean_of_all = busy / tasks
    wanted = {}
    for name, key in tuned.items():
        mine = means[name]
        run = (mine.busy + guards.prior_tasks * mean_of_all) / (mine.tasks + guards.prior_tasks)
        wanted[name] = key.due / run
    scale = sum(key.now for key in tuned.values()) / sum(wanted.values()) if wanted else 1.0
    return {name: weight * scale for name, weight in wanted.items()}


def _guarded(
    tuned: Mapping[str, Key], raw: Mapping[str, float], guards: Guards
) -> dict[str, float]:
    now = {name: key.now for name, key in tuned.items()}
    far = {name for name in tuned if not _is_near(now[name], raw[name], guards.dead_band)}
    if not far:
        return now
    total = sum(now.values())
    bounds = {name: _bounds(key, guards) for name, key in tuned.items()}
    allowed = _clamped(raw, bounds, total)

    def is_there(name: str) -> bool:
        band = 0.0 if allowed[name] in bounds[name] else guards.dead_band
        return _is_near(now[name], allowed[name], band)

    # Otherwise the last digits of the weights would change in every round, because bounds and the
    # sum keep some raw weights out of reach.
    if all(is_there(name) for name in far):
        return now
    goals = {name: raw[name] if name in far else now[name] for name in tuned}
    return _clamped(goals, {name: _room(key, guards) for name, key in tuned.items()}, total)


def _is_near(now: float, raw: float, dead_band: float) -> bool:
    return max(raw / now, now / raw) <= 1 + dead_band + _ROUNDING


def _bounds(key: Key, guards: Guards) -> tuple[float, float]:
    return max(guards.lowest * key.due, MIN_WEIGHT), min(guards.highest * key.due, MAX_WEIGHT)


def _room(key: Key, guards: Guards) -> tuple[float, float]:
    """Return the least and the greatest weight of the key after this publish; a weight out of
    bounds approaches them by steps."""
    lowest, highest = _bounds(key, guards)
    least = min(max(lowest, key.now / guards.step), key.now * guards.step)
    most = max(min(highest, key.now * guards.step), key.now / guards.step)
    return min(least, most), max(least, most)


def _clamped(
    goals: Mapping[str, float], room: Mapping[str, tuple[float, float]], total: float
) -> dict[str, float]:
    """Scale the goals by one number and clamp each to its room, so that they sum to `total`, or as
    nearly as the room allows."""

    def at(scale: float) -> dict[str, float]:
        return {
            name: min(max(goal * scale, room[name][0]), room[name][1])
            for name, goal in goals.items()
        }

    low = min(room[name][0] / goal for name, goal in goals.items())
    high = max(room[name][1] / goal for name, goal in goals.items())
    # The sum grows with the scale: bisect to the precision of floats.
    while low < (middle := math.sqrt(low) * math.sqrt(high)) < high:
        if sum(at(middle).values()) < total:
            low = middle
        else:
            high = middle
    return at(high)


def _reason(key: Key, raw: float, guarded: float, guards: Guards) -> str:
    if _is_near(key.now, raw, guards.dead_band):
        return f"within {guards.dead_band:.0%} of what it should be"
    if _is_near(guarded, raw, 0.0):
        return "as computed"
    least, most = _room(key, guards)
    if least < guarded < most:
        return "limited: the sum of the weights must not change"
    if guarded in (guards.lowest * key.due, guards.highest * key.due, MIN_WEIGHT, MAX_WEIGHT):
        return f"at its bound, {guarded / key.due:g} times its share"
    return f"one step of x{guards.step:g}"
