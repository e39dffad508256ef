"""The control law of limits: how many slots of a node the tasks of one key may hold at once. One
pure function, `propose_limits`.

A fair queue chooses the next task when a slot is free, and never takes a slot away: a key with long
runs that finds the queue empty holds every slot until they end, and short tasks of others wait. The
limit of such a key is its due part of the slots that the queue used, plus some headroom. The guard
rails of weights bound the published limit too; docs/how-to/tune.md explains each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlead.pipeline.tuning.canary import entitled
from fairlead.pipeline.tuning.control import Change, Key, Used, decay, why_not_tuned
from fairlead.pipeline.tuning.guard_rails import Guards

_PEAK = 0.95
"""Fraction of the worker time that a peak covers, so that one odd hour does not count."""

_ROUNDING = 1e-6


LimitChange = Change[int | None]


class Workers(NamedTuple):
    """The workers of a queue in one time window."""

    age: float
    """Seconds from the end of the window until now."""
    busy: float
    """Worker-seconds."""
    peak: float
    """Workers busy at once, on all nodes, in the busiest minute."""


def propose_limits(
    keys: Mapping[str, Key], workers: Sequence[Workers], nodes: int, is_held: bool, guards: Guards
) -> list[LimitChange]:
    """Return the changes of the keys that have a limit or should have one, with reasons.

    `nodes`: the number of nodes that serve the queue. A limit is at least 1 slot, changes by one
    step at most, and stays if rounding alone could explain it. No limit changes while `is_held`,
    and none is computed without a node.
    """
    half_life = guards.half_life
    peak = _peak((each.busy * decay(each.age, half_life), each.peak) for each in workers)
    slots = peak / nodes if nodes else 0.0
    most = math.ceil(slots - _ROUNDING)
    shares = _shares(keys, guards)
    changes: list[LimitChange] = []
    for name, key in keys.items():
        why, raw, guarded = why_not_tuned(key, guards), None, key.limit
        if why is not None:
            # A key that a person or a contract has fixed gets no limit. A computed limit of another
            # key stays until there is data again.
            guarded = key.limit if key.fixed is None else None
        elif not most:
            why = "no node has run tasks of this queue"
        else:
            raw = guards.headroom * shares[name] * slots
            guarded, why = _guarded(key, raw, most, nodes, guards)
        if is_held and guarded != key.limit:
            guarded, why = key.limit, "held"
        if key.limit is not None or guarded is not None or why == "held":
            changes.append(Change(name, key.limit, raw, guarded, why))
    return changes


def _guarded(key: Key, raw: float, most: int, nodes: int, guards: Guards) -> tuple[int | None, str]:
    target = max(1, math.ceil(raw - _ROUNDING))
    if not _comes_near(key, target, nodes, guards):
        return None, "the key no longer comes near its limit"
    now = most if key.limit is None else key.limit
    if now < most and _is_near(now, raw, guards.dead_band):
        return now, f"within {guards.dead_band:.0%} of what it should be"
    guarded = _step(now, target, guards.step)
    if min(guarded, target) >= most:
        return None, "all slots are due to it"
    if guarded != target:
        return guarded, f"one step of x{guards.step:g}"
    return guarded, "at its bound, one slot" if raw <= 1 - _ROUNDING else "as computed"


def _comes_near(key: Key, target: int, nodes: int, guards: Guards) -> bool:
    """Return whether the key uses so many slots of a node that it needs a limit.

    A key without a limit needs one above the dead band of the target. A key with a limit needs it
    while tasks wait, or the use is within a step of the target or of the limit. Both directions
    compare use with the target, because a limit on its way from all slots to the target may still
    be far above the use.
    """
    used = _peak((use.busy * decay(use.age, guards.half_life), use.peak) for use in key.use) / nodes
    if key.limit is None:
        return used > target * (1 + guards.dead_band)
    waited = _peak(
        (use.busy * decay(use.age, guards.half_life), float(use.waited)) for use in key.use
    )
    return bool(waited) or used * guards.step >= min(target, key.limit)


def _is_near(limit: int, raw: float, dead_band: float) -> bool:
    """Return whether the raw value would be rounded up to this limit, or is within the dead band.
    So a limit that was lowered is raised again only by a raw value that grew by more than the
    band, and the other way round."""
    is_rounded_up = limit - 1 < raw - _ROUNDING
    return raw <= limit * (1 + dead_band) and (is_rounded_up or limit <= raw * (1 + dead_band))


def _step(now: int, target: int, step: float) -> int:
    """Return the target, or the limit nearest to it within one step or one slot of now."""
    if target > now:
        return min(target, max(now + 1, math.floor(now * step + _ROUNDING)))
    return max(target, min(now - 1, math.ceil(now / step - _ROUNDING)), 1)


def _shares(keys: Mapping[str, Key], guards: Guards) -> dict[str, float]:
    """Return, by key, the fraction of the workers that it may use, 0 to 1: its due part, whether it
    asked for that much or not; all workers while no key had to wait. The fraction is drawn towards
    the key's part of all that is due, as if the queue had run `prior_tasks` more tasks and all keys
    had asked for more than there was."""
    windows: dict[float, dict[str, Used]] = {}
    for name, key in keys.items():
        for use in key.use:
            windows.setdefault(use.age, {})[name] = use
    mine, all_of_it = dict.fromkeys(keys, 0.0), dict.fromkeys(keys, 0.0)
    tasks = busy = 0.0
    for age, used in windows.items():
        counts = decay(age, guards.half_life)
        capacity = sum(use.busy for use in used.values())
        asked = {name: max(use.busy, use.asked) for name, use in used.items()}
        due = {name: keys[name].due for name in used}
        filled = entitled(asked, due, capacity)
        # Least worker-seconds per unit of due among the keys that asked for more than their due.
        level = min(
            (
                filled[name] / due[name]
                for name in used
                if filled[name] < asked[name] * (1 - _ROUNDING)
            ),
            default=math.inf,
        )
        for name in used:
            mine[name] += counts * min(capacity, level * due[name])
            all_of_it[name] += counts * capacity
        tasks += counts * sum(use.tasks for use in used.values())
        busy += counts * capacity
    prior = guards.prior_tasks * busy / tasks if tasks else 0.0
    total = sum(key.due for key in keys.values())
    return {
        name: (mine[name] + prior * key.due / total) / (all_of_it[name] + prior)
        if all_of_it[name] + prior
        else 0.0
        for name, key in keys.items()
    }


def _peak(found: Iterable[tuple[float, float]]) -> float:
    """Return the least value above which hardly any weight lies, of pairs (weight, value); 0
    without weight."""
    rows = sorted((value, weight) for weight, value in found if weight > 0)
    left = _PEAK * math.fsum(weight for _, weight in rows)
    for value, weight in rows:
        left -= weight
        if left <= _ROUNDING * weight:
            return value
    return rows[-1][0] if rows else 0.0
