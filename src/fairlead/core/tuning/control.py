"""The control law: from what each key took of the workers, the weight it should have. One pure
function, `propose`.

A fair queue shares dispatches by weight, so a key whose tasks run long gets more of the workers
than its weight says. With weight w and mean run time r a key gets worker time in proportion to w r:
the weight that gives it its due is due / r. The guard rails stand between that number and the one
that may be published; docs/how-to/tune.md tells of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from fairlead.core.tuning.guard_rails import Guards, Situation, holds
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

_HALVINGS = 7
"""What is older than so many half-lives counts for less than a hundredth: it need not be read."""

_ROUNDING = 1e-6

_HOUR = 3600.0


class Used(NamedTuple):
    """What a key took in one stretch of time."""

    age: float
    """Seconds from the end of the stretch until now."""
    busy: float
    """Worker-seconds."""
    tasks: int
    """Dispatches."""
    seconds: float = _HOUR
    """Length of the stretch."""
    asked: float = 0.0
    """Worker-seconds it could have used; infinite, if it had tasks waiting all the time."""
    peak: float = 0.0
    """Workers it had at once, on all nodes, in its busiest minute."""
    waited: bool = False
    """Whether it had tasks waiting all through some minute."""


class Key(msgspec.Struct, frozen=True):
    """A fairness key of a queue."""

    due: float
    """Its part of the worker time, against that of the others: its contract, or else the weight of
    its tasks."""
    now: float
    """The weight that counts today."""
    use: Sequence[Used] = ()
    fixed: str | None = None
    """Why its weight is nobody's to change; None: it may be tuned."""
    limit: int | None = None
    """Slots of each node that it may hold today; None: as many as there are."""


class Change(msgspec.Struct, frozen=True):
    """What becomes of the weight of a key."""

    fairness_key: str
    now: float
    raw: float
    """As computed."""
    guarded: float
    """As the guard rails leave it: this may be published."""
    reason: str
    is_tuned: bool
    """False: nothing was computed for it, and `raw` is its weight today."""


class Proposal(msgspec.Struct, frozen=True):
    """What `propose` answers."""

    changes: list[Change]
    """Every key given, in that order."""
    holds: list[str]
    """Why nothing may be published now. While there is any, each `guarded` is the weight of
    today."""

    @property
    def is_change(self) -> bool:
        """Whether publishing it would change a weight."""
        return any(change.guarded != change.now for change in self.changes)


def horizon(guards: Guards) -> float:
    """Seconds: use that is older than this is not worth reading."""
    return _HALVINGS * guards.half_life


def propose(keys: Mapping[str, Key], situation: Situation, guards: Guards) -> Proposal:
    """The weights that give each key its due, raw and guarded, and why.

    The guarded weights add up to those of today; each lies within a step of today's and, unless
    today's does not, within the bounds. Keys inside the dead band move at most together. Nothing
    moves while something holds.
    """
    means = {name: _mean_run(key.use, guards.half_life) for name, key in keys.items()}
    left_alone = {
        name: why for name, key in keys.items() if (why := untouched(key, guards)) is not None
    }
    tuned = {name: key for name, key in keys.items() if name not in left_alone}
    raw = _raw(tuned, means, guards)
    reached = _guarded(tuned, raw, guards)
    held = holds(situation, guards)
    changes = []
    for name, key in keys.items():
        if name in left_alone:
            changes.append(Change(name, key.now, key.now, key.now, left_alone[name], False))
            continue
        guarded = key.now if held else reached[name]
        reason = "held" if held else _reason(key, raw[name], guarded, guards)
        changes.append(Change(name, key.now, raw[name], guarded, reason, True))
    return Proposal(changes, held)


def decay(age: float, half_life: float) -> float:
    """How much counts what was used `age` seconds ago, 0 to 1."""
    return math.exp2(-max(0.0, age) / half_life)


class _Mean(NamedTuple):
    tasks: float
    """Decayed."""
    busy: float
    """Decayed worker-seconds."""


def _mean_run(use: Sequence[Used], half_life: float) -> _Mean:
    tasks = busy = 0.0
    for stretch in use:
        counts = decay(stretch.age, half_life)
        tasks += stretch.tasks * counts
        busy += stretch.busy * counts
    return _Mean(tasks, busy)


def untouched(key: Key, guards: Guards) -> str | None:
    """Why nothing is computed for the key; None: it is."""
    if key.fixed is not None:
        return key.fixed
    tasks = sum(stretch.tasks for stretch in key.use)
    if tasks < guards.least_tasks:
        return f"too little data: {tasks} tasks, {guards.least_tasks} needed"
    seconds = sum(stretch.seconds for stretch in key.use if stretch.tasks)
    if seconds < guards.least_time:
        return (
            f"too little data: {seconds / _HOUR:.1f} h with tasks, {guards.least_time / _HOUR:.1f}"
            " h needed"
        )
    return None


def _raw(tuned: Mapping[str, Key], means: Mapping[str, _Mean], guards: Guards) -> dict[str, float]:
    """due / mean run, on the scale of today's weights: they add up to the same. So the keys that
    are not touched keep their part of the dispatches, and the median run time by which the design
    multiplies would cancel out."""
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
    goals = {
        name: key.now if _is_near(key.now, raw[name], guards.dead_band) else raw[name]
        for name, key in tuned.items()
    }
    if all(goals[name] == key.now for name, key in tuned.items()):
        return goals
    room = {name: _room(key, guards) for name, key in tuned.items()}
    return _clamped(goals, room, sum(key.now for key in tuned.values()))


def _is_near(now: float, raw: float, dead_band: float) -> bool:
    return max(raw / now, now / raw) <= 1 + dead_band


def _room(key: Key, guards: Guards) -> tuple[float, float]:
    """Between which weights the key may be after this publish; a weight out of bounds comes nearer
    by steps."""
    least = min(
        max(guards.lowest * key.due, key.now / guards.step, MIN_WEIGHT), key.now * guards.step
    )
    most = max(
        min(guards.highest * key.due, key.now * guards.step, MAX_WEIGHT), key.now / guards.step
    )
    return min(least, most), max(least, most)


def _clamped(
    goals: Mapping[str, float], room: Mapping[str, tuple[float, float]], total: float
) -> dict[str, float]:
    """The goals times one number, each within its room, so that they add up to `total`; as nearly
    as the room allows."""

    def at(scale: float) -> dict[str, float]:
        return {
            name: min(max(goal * scale, room[name][0]), room[name][1])
            for name, goal in goals.items()
        }

    low = min(room[name][0] / goal for name, goal in goals.items())
    high = max(room[name][1] / goal for name, goal in goals.items())
    # The sum grows with the scale: halve until floats cannot tell any more.
    while low < (middle := math.sqrt(low) * math.sqrt(high)) < high:
        if sum(at(middle).values()) < total:
            low = middle
        else:
            high = middle
    return at(high)


def _reason(key: Key, raw: float, guarded: float, guards: Guards) -> str:
    if _is_near(key.now, raw, guards.dead_band):
        return f"within {guards.dead_band:.0%} of what it should be"
    if _is_near(guarded, raw, _ROUNDING):
        return "as computed"
    least, most = _room(key, guards)
    if least < guarded < most:
        return "as far as the others let it: the sum stays"
    if guarded in (guards.lowest * key.due, guards.highest * key.due, MIN_WEIGHT, MAX_WEIGHT):
        return f"at its bound, {guarded / key.due:g} times its due"
    return f"one step of x{guards.step:g}"
