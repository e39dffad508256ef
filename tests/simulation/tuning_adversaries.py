"""Tenants that try to gain worker time from the control law of weights, on a virtual clock.

In each step of five minutes the keys divide the workers as a fair queue does that shares dispatches:
in proportion to weight and mean run time, and no key gets more than it asks for. Every hour the law
computes weights, which are in force from then on; that is as often as `tune apply` may run, without
canary windows. A tenant is entitled to its part by declared weight of each step: the workers divided
in proportion to worker time, as if each second of a task of weight w cost 1 / w.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fairlead.pipeline.tuning.canary import entitled
from fairlead.pipeline.tuning.control import (
    DAY,
    Key,
    Used,
    declared_weight,
    horizon,
    propose,
    scaled_to,
)
from fairlead.pipeline.tuning.guard_rails import Guards

HOUR, STEP = 3600.0, 300.0
STEPS = 12
"""Steps in an hour."""


class Kind(NamedTuple):
    """A kind of task, and its part of the tasks of a key."""

    weight: float
    run: float
    """Seconds."""
    part: float = 1.0


class Mix(NamedTuple):
    """Tasks of a key in a step."""

    kinds: tuple[Kind, ...]
    asks: float = math.inf
    """Workers that the key could use; infinite if its tasks always wait."""

    @property
    def run(self) -> float:
        """Mean run time."""
        return self._mean(lambda kind: kind.run)

    @property
    def stride(self) -> float:
        """Mean of 1 / weight."""
        return self._mean(lambda kind: 1 / kind.weight)

    @property
    def weighted(self) -> float:
        """Mean of run time / weight."""
        return self._mean(lambda kind: kind.run / kind.weight)

    def _mean(self, of: Callable[[Kind], float]) -> float:
        parts = sum(kind.part for kind in self.kinds)
        return sum(kind.part * of(kind) for kind in self.kinds) / parts


HONEST = Mix((Kind(1.0, 4.0),))

Strategy = Callable[[int], Mapping[str, Mix]]
"""Keys of a tenant in a step."""


class Observed(NamedTuple):
    """Observations of a key, from which a law computes its weight."""

    use: list[Used]
    greatest: float
    """Greatest weight of a task of the last hour with tasks."""
    latest: float
    """Harmonic mean of the weights of these tasks."""
    now: float | None
    """Computed weight in force; None without one."""
    of_day: tuple[float | None, ...]
    """Computed weights in force at each hour of the last day; None without one."""


Law = Callable[[Mapping[str, Observed]], Mapping[str, float]]
"""Function that returns the next weights of the keys that have a computed one."""


def law(guards: Guards) -> Law:
    """Return the control law, with the same inputs as `jobs/tune.py` gives it."""

    def decide(observed: Mapping[str, Observed]) -> Mapping[str, float]:
        declared = {
            name: declared_weight(key.use, guards.half_life) or key.latest
            for name, key in observed.items()
        }
        keys = {}
        for name, key in observed.items():
            mine = min(declared[name], key.latest)
            now = mine if key.now is None else key.now
            of_day = [now, *(mine if weight is None else weight for weight in key.of_day)]
            keys[name] = Key(declared[name], now, key.use, of_day=(min(of_day), max(of_day)))
        changes = propose(scaled_to(declared, keys, guards), guards)
        return {
            change.fairness_key: change.guarded
            for change in changes
            if change.raw is not None or observed[change.fairness_key].now is not None
        }

    return decide


def no_law(observed: Mapping[str, Observed]) -> Mapping[str, float]:
    """Leave the declared weights in force."""
    return {}


class Got(NamedTuple):
    """Worker-seconds of a tenant in a step."""

    busy: float
    entitled: float


class Contest:
    """Honest tenants and an adversary on one queue of `slots` workers."""

    def __init__(
        self, honest: Strategy, adversary: Strategy, decide: Law, guards: Guards, slots: int = 4
    ) -> None:
        self.steps: list[Got] = []
        """Worker time of the adversary."""
        self.weights: dict[str, float] = {}
        self.history: list[dict[str, float]] = []
        """Computed weights after each hour."""
        self._honest, self._adversary, self._decide = honest, adversary, decide
        self._capacity = slots * STEP
        self._hours: deque[dict[str, Used]] = deque(maxlen=int(horizon(guards) / HOUR) + 1)
        self._greatest: dict[str, float] = {}

    def run(self, hours: int) -> Contest:
        for hour in range(hours):
            used: dict[str, Used] = {}
            greatest: dict[str, float] = {}
            for step in range(hour * STEPS, (hour + 1) * STEPS):
                self._serve(step, used, greatest)
            self._greatest |= greatest
            self._hours.append(used)
            self.weights = dict(self._decide(self._observed()))
            self.history.append(self.weights)
        return self

    def _serve(self, step: int, used: dict[str, Used], greatest: dict[str, float]) -> None:
        theirs = self._adversary(step)
        mixes = {**self._honest(step), **theirs}
        asks = {key: min(self._capacity, mix.asks * STEP) for key, mix in mixes.items()}
        parts = {key: self.weights.get(key, 1 / mix.stride) * mix.run for key, mix in mixes.items()}
        due = {key: mix.run / mix.weighted for key, mix in mixes.items()}
        capacity = min(self._capacity, sum(asks.values()))
        busy, fair = entitled(asks, parts, capacity), entitled(asks, due, capacity)
        for key, mix in mixes.items():
            before = used.get(key, Used(0.0, 0.0, 0))
            tasks = busy[key] / mix.run
            used[key] = before._replace(
                busy=before.busy + busy[key],
                tasks=before.tasks + tasks,
                strides=before.strides + tasks * mix.stride,
                weighted=before.weighted + tasks * mix.weighted,
            )
            most = max(kind.weight for kind in mix.kinds)
            greatest[key] = max(most, greatest.get(key, 0.0))
        self.steps.append(Got(sum(busy[key] for key in theirs), sum(fair[key] for key in theirs)))

    def _observed(self) -> dict[str, Observed]:
        keys = sorted({key for hour in self._hours for key in hour})
        of_day = self.history[-round(DAY / HOUR) :]
        return {
            key: Observed(
                [
                    hour[key]._replace(age=age * HOUR)
                    for age, hour in enumerate(reversed(self._hours))
                    if key in hour
                ],
                self._greatest[key],
                next(
                    hour[key].tasks / hour[key].strides
                    for hour in reversed(self._hours)
                    if key in hour
                ),
                self.weights.get(key),
                tuple(weights.get(key) for weights in of_day),
            )
            for key in keys
        }

    def gain(self) -> float:
        """Return the worker time of the adversary, divided by that to which it is entitled."""
        return sum(step.busy for step in self.steps) / sum(step.entitled for step in self.steps)

    def gain_of_day(self) -> float:
        """Return the greatest worker time of the adversary in any 24 hours, divided by that to which
        it is entitled in the same hours."""
        day = STEPS * 24
        return max(_gain(self.steps[n : n + day]) for n in range(0, len(self.steps) - day + 1, 12))


def _gain(steps: Iterable[Got]) -> float:
    busy, fair = (sum(numbers) for numbers in zip(*steps, strict=True))
    return busy / fair if fair else 1.0


# strategies ---------------------------------------------------------------------------------------


def honest(step: int) -> Mapping[str, Mix]:
    return {"a": HONEST, "c": HONEST}


def few_heavy_tasks(step: int) -> Mapping[str, Mix]:
    """Send one task of weight 50 among 240 of weight 1."""
    return {"b": Mix((Kind(1.0, 4.0, 240.0), Kind(50.0, 4.0, 1.0)))}


def one_heavy_task(step: int) -> Mapping[str, Mix]:
    """Send tasks of weight 50 in a single step of five minutes."""
    return {"b": Mix((Kind(50.0, 4.0),)) if step == 30 else HONEST}


def short_heavy_flood(step: int) -> Mapping[str, Mix]:
    """Hide the real tasks among nine times as many short ones of weight 50."""
    return {"b": Mix((Kind(1.0, 4.0), Kind(50.0, 0.004, 9.0)))}


def many_keys(step: int) -> Mapping[str, Mix]:
    """Split a flood over ten keys, each with heavy tasks now and then."""
    mix = few_heavy_tasks(step)["b"]
    return {f"b{number}": mix for number in range(10)}


def fresh_keys(step: int) -> Mapping[str, Mix]:
    """Use a new key every hour, so that it never has enough data, for tasks ten times as long."""
    return {f"b{step // STEPS}": Mix((Kind(1.0, 40.0),))}


def burst_before_each_publish(step: int) -> Mapping[str, Mix]:
    """Send tasks of weight 50 in the last five minutes of each hour."""
    return {"b": Mix((Kind(50.0, 4.0),)) if step % STEPS == STEPS - 1 else HONEST}


def idle_and_come_back(step: int) -> Mapping[str, Mix]:
    """Have tasks every second day, first heavy ones and then usual ones."""
    hour = step // STEPS % 48
    if hour >= 24:
        return {}
    return {"b": Mix((Kind(50.0 if hour < 1 else 1.0, 4.0),))}


def short_then_long(step: int) -> Mapping[str, Mix]:
    """Send short tasks by night, so that the weight rises, and long ones by day."""
    return {"b": Mix((Kind(1.0, 0.4 if step // STEPS % 24 < 12 else 40.0),))}


def heavy_then_light(step: int) -> Mapping[str, Mix]:
    """Send heavy tasks every other hour."""
    return {"b": Mix((Kind(50.0 if step // STEPS % 2 else 1.0, 4.0),))}


STRATEGIES: tuple[Strategy, ...] = (
    one_heavy_task,
    few_heavy_tasks,
    short_heavy_flood,
    many_keys,
    fresh_keys,
    burst_before_each_publish,
    idle_and_come_back,
    short_then_long,
    heavy_then_light,
)


def random_strategy(seed: int) -> Strategy:
    """Return a strategy that changes at random times among kinds of tasks, pauses and keys."""
    chosen = random.Random(seed)
    kinds = [
        tuple(
            Kind(
                chosen.choice([0.1, 1.0, 5.0, 50.0]),
                chosen.choice([0.4, 4.0, 40.0]),
                chosen.choice([0.01, 0.3, 1.0]),
            )
            for _ in range(chosen.randint(1, 3))
        )
        for _ in range(3)
    ]
    hours = [chosen.choice([1, 2, 6, 12, 24]) for _ in range(2)]
    pauses = chosen.random() < 0.3
    keys = chosen.choice([1, 1, 3])

    def strategy(step: int) -> Mapping[str, Mix]:
        phase = step // (STEPS * hours[0]) + step // (STEPS * hours[1])
        if pauses and phase % 4 == 3:
            return {}
        return {f"b{key}": Mix(kinds[(phase + key) % 3]) for key in range(keys)}

    return strategy
