"""The control law of weights: the weight that each key should have, from its use of the workers.
One pure function, `propose`.

A fair queue shares dispatches by weight, so a key whose tasks run long gets more of the workers
than its weight says. With weight w and mean run time r, a key gets worker time in proportion to
w r. Let d be the share of worker time to which the key is entitled: then the right weight is d / r.
Without a contract d is `declared_weight`, which single tasks hardly move. The guard rails bound the
published weight; docs/how-to/tune.md explains each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from fairlead.pipeline.tuning.guard_rails import Guards

_HALVINGS = 7
"""Half-lives after which use counts for less than a hundredth and need not be read."""

_FORGOTTEN = 64
"""Half-lives after which use counts nothing."""

_ROUNDING = 1e-6

Value = TypeVar("Value", float, int | None)
"""Type of a weight or a limit."""

_HOUR = 3600.0

DAY = 24 * _HOUR
"""Length in seconds of the day of `Guards.daily`."""


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
    strides: float = 0.0
    """Sum of 1 / weight, as submitted, over the dispatched tasks."""
    weighted: float = 0.0
    """Worker-seconds, those of each task divided by its weight as submitted."""


class Key(msgspec.Struct, frozen=True):
    """A fairness key of a queue, with its use."""

    due: float
    """Share of the worker time to which the key is entitled, as a weight: `declared_weight`, or the
    share of its contract after `scaled_to`."""
    now: float
    """Weight in force today."""
    use: Sequence[Used] = ()
    fixed: str | None = None
    """Reason why the weight of this key may not be tuned; None if it may."""
    limit: int | None = None
    """Slots of each node that the key may hold today; None for no limit."""
    of_day: tuple[float, float] | None = None
    """Least and greatest weight in force in the last 24 hours; None if only `now` was."""


class Change(msgspec.Struct, Generic[Value], frozen=True):
    """Change of the weight of a key, or of its limit: slots of each node, None for no limit."""

    fairness_key: str
    now: Value
    raw: float | None
    """Computed value; None if nothing was computed."""
    guarded: Value
    """Value within the guard rails, which may be published."""
    reason: str
    """Guard rail between `raw` and `guarded`, in words."""

    @property
    def is_change(self) -> bool:
        """Whether publishing it would change the weight or limit."""
        return self.guarded != self.now


def horizon(guards: Guards) -> float:
    """Return the age in seconds beyond which use is not worth reading."""
    return _HALVINGS * guards.half_life


def declared_weight(use: Sequence[Used], half_life: float) -> float | None:
    """Return the weight that the tasks of a key were submitted with; None without dispatches and
    worker time.

    The result is the lower of two harmonic means: over the tasks, and over the worker time. A task
    of weight w moves the virtual time of its key by 1 / w, so the harmonic mean is the one weight
    for all tasks that would have moved it as far. The mean over tasks does not depend on a few long
    heavy tasks, the mean over worker time not on a flood of short heavy ones.
    """
    summed = _summed(use, half_life)
    found = [mean for mean in (summed.by_task, summed.by_time) if mean is not None]
    return min(found, default=None)


def scaled_to(
    declared: Mapping[str, float], keys: Mapping[str, Key], guards: Guards
) -> dict[str, Key]:
    """Return the keys with dues in the unit of weights: those of the tuned keys are scaled by one
    number, so that they sum to the declared weights of these keys. So shares of 60 and 40 mean the
    same as 3 and 2, also for keys that are not tuned."""
    tuned = [name for name, key in keys.items() if why_not_tuned(key, guards) is None]
    total = sum(keys[name].due for name in tuned)
    scale = sum(declared[name] for name in tuned) / total if tuned else 1.0
    return {
        name: msgspec.structs.replace(key, due=key.due * scale) if name in tuned else key
        for name, key in keys.items()
    }


def propose(keys: Mapping[str, Key], guards: Guards, is_held: bool = False) -> list[Change[float]]:
    """Return the weights that give each key its share, raw and guarded, with reasons.

    The raw weights of the tuned keys sum to their dues. Each guarded weight lies between today's
    and the raw one within the bounds, at most a step and the change of a day away, and their sum
    between today's and that of the dues. No weight changes while all are in the dead band, or while
    `is_held`.
    """
    idle = {name: why_not_tuned(key, guards) for name, key in keys.items()}
    tuned = {name: key for name, key in keys.items() if idle[name] is None}
    raw = _raw(keys, tuned, guards)
    moves = {} if is_held else _moves(tuned, raw, guards)
    changes = []
    for name, key in keys.items():
        to, why = moves.get(name, (key.now, idle[name] or "held"))
        changes.append(Change(name, key.now, raw.get(name), to, why))
    return changes


def decay(age: float, half_life: float) -> float:
    """Return how much use from `age` seconds ago counts, 0 to 1. Use of long ago counts nothing:
    numbers near the least float would lose their ratios."""
    halvings = max(0.0, age) / half_life
    return math.exp2(-halvings) if halvings < _FORGOTTEN else 0.0


class _Summed(NamedTuple):
    """Decayed sums of the use of a key."""

    tasks: float
    busy: float
    strides: float
    weighted: float

    @property
    def by_task(self) -> float | None:
        return self.tasks / self.strides if self.tasks and self.strides else None

    @property
    def by_time(self) -> float | None:
        return self.busy / self.weighted if self.busy and self.weighted else None


def _summed(use: Sequence[Used], half_life: float) -> _Summed:
    tasks = busy = strides = weighted = 0.0
    for window in use:
        counts = decay(window.age, half_life)
        tasks += window.tasks * counts
        busy += window.busy * counts
        strides += window.strides * counts
        weighted += window.weighted * counts
    return _Summed(tasks, busy, strides, weighted)


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


def _raw(keys: Mapping[str, Key], tuned: Mapping[str, Key], guards: Guards) -> dict[str, float]:
    """Return due / mean run, scaled to the sum of the dues, so that the keys that are not changed
    keep their part of the dispatches. A common factor, such as the median run time, would cancel
    out."""
    sums = {name: _summed(key.use, guards.half_life) for name, key in keys.items()}
    tasks = sum(each.tasks for each in sums.values())
    busy = sum(each.busy for each in sums.values())
    if not busy or not tasks:
        return {name: key.now for name, key in tuned.items()}
    prior, mean_of_all = guards.prior_tasks, busy / tasks
    wanted = {}
    for name, key in tuned.items():
        mine = sums[name]
        run = (mine.busy + prior * mean_of_all) / (mine.tasks + prior)
        wanted[name] = key.due / run
    scale = sum(key.due for key in tuned.values()) / sum(wanted.values()) if wanted else 1.0
    return {name: weight * scale for name, weight in wanted.items()}


def _moves(
    tuned: Mapping[str, Key], raw: Mapping[str, float], guards: Guards
) -> dict[str, tuple[float, str]]:
    """Return the next weight of each key, and the guard rail that keeps it from its raw weight, in
    words."""
    now = {name: key.now for name, key in tuned.items()}
    allowed = {name: _within(raw[name], _bounds(key, guards)) for name, key in tuned.items()}
    # Without a dead band, the last digits of the weights would change in every round.
    stay = all(
        _is_near(now[name], raw[name], guards.dead_band) or _is_near(now[name], allowed[name], 0.0)
        for name in tuned
    )
    goals = now if stay else {n: _goal(key, allowed[n], guards) for n, key in tuned.items()}
    moved = _balanced(now, goals, sum(key.due for key in tuned.values()))
    moves = {}
    for name, key in tuned.items():
        to, goal, most = moved[name], goals[name], allowed[name]
        if _is_near(to, raw[name], 0.0):
            why = "as computed"
        elif stay and _is_near(to, raw[name], guards.dead_band):
            why = f"within {guards.dead_band:.0%} of what it should be"
        elif not _is_near(to, goal, 0.0):
            why = "limited: the sum of the weights must not change"
        elif _is_near(goal, most, 0.0):
            why = f"at its bound, {to / key.due:.4g} times its share"
        elif _is_near(goal, _within(most, _of_step(key, guards)), 0.0):
            why = f"one step of x{guards.step:g}"
        else:
            why = f"at most x{guards.daily:g} in a day"
        moves[name] = to, why
    return moves


def _is_near(now: float, raw: float, dead_band: float) -> bool:
    return max(raw / now, now / raw) <= 1 + dead_band + _ROUNDING


def _within(weight: float, room: tuple[float, float]) -> float:
    return min(max(weight, room[0]), room[1])


def _bounds(key: Key, guards: Guards) -> tuple[float, float]:
    # A share far beside the others, such as a contract of 1 beside 100,000, may lie outside the
    # range of weights with all its multiples.
    range_of_weights = MIN_WEIGHT, MAX_WEIGHT
    return (
        _within(guards.lowest * key.due, range_of_weights),
        _within(guards.highest * key.due, range_of_weights),
    )


def _of_step(key: Key, guards: Guards) -> tuple[float, float]:
    return key.now / guards.step, key.now * guards.step


def _goal(key: Key, allowed: float, guards: Guards) -> float:
    """Return the weight nearest to the allowed one within a step and within the change of a day."""
    least, greatest = key.of_day or (key.now, key.now)
    # Weights in force in the last day may differ by more, because a person put a version back.
    of_day = min(greatest / guards.daily, key.now), max(least * guards.daily, key.now)
    return _within(_within(allowed, _of_step(key, guards)), of_day)


def _balanced(
    now: Mapping[str, float], goals: Mapping[str, float], total: float
) -> dict[str, float]:
    """Move the weights to their goals, except that the side that would take the sum out of the
    interval from today's sum to `total` moves only a part of its way."""
    before = sum(now.values())
    up = sum(max(0.0, goals[name] - now[name]) for name in now)
    down = sum(max(0.0, now[name] - goals[name]) for name in now)
    most, least = max(before, total), min(before, total)
    rises = min(1.0, (most - before + down) / up) if up else 1.0
    falls = min(1.0, (before - least + up) / down) if down else 1.0
    return {
        name: goals[name] if part == 1.0 else now[name] + part * (goals[name] - now[name])
        for name in now
        for part in [rises if goals[name] > now[name] else falls]
    }
