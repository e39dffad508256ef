"""The closed loop of weights on a virtual clock: workers on a real fair lane, their measurements, and
the control law that uses them."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fairlead.lab.node import VirtualNode
from fairlead.model import Trigger
from fairlead.pipeline.tuning.control import Key, Used, propose
from fairlead.pipeline.tuning.guard_rails import Guards, Situation

HOUR = 3600.0
RunTime = Callable[[str, float], float]
"""Mean run time of a key at an hour, in seconds."""


class Round(NamedTuple):
    """One hour of the loop."""

    share: dict[str, float]
    """Fraction of the worker time, by key."""
    weights: dict[str, float]
    """Weights at the end of the hour."""
    published: bool


class Loop:
    """Keys with `waiting` tasks each, on `slots` workers; every hour the control law uses the
    measurements.

    `delay` is the delay of measurements in hours, `noise` the sigma of the lognormal run times.
    """

    def __init__(
        self,
        due: Mapping[str, float],
        run_time: RunTime,
        guards: Guards,
        seed: int = 1,
        slots: int = 8,
        waiting: int = 10,
        delay: int = 0,
        noise: float = 0.0,
        is_active: Callable[[str, float], bool] = lambda key, hour: True,
    ) -> None:
        self.due = dict(due)
        self.guards = guards
        self.rounds: list[Round] = []
        self._run_time = run_time
        self._random = random.Random(seed)
        self._noise = noise
        self._delay = delay
        self._is_active = is_active
        self._waiting = waiting
        self._now = 0.0
        self._overrides: dict[str, float] = {}
        """One mapping, as in the engine, which the lane reads and a publish changes."""
        self._node = VirtualNode("q", 1, in_memory=1000, weights=self._overrides)
        self._numbers = itertools.count(1)
        self._queued = dict.fromkeys(due, 0)
        self._ends: list[tuple[float, int, str]] = []
        self._free = slots
        self._hours: deque[dict[str, tuple[float, int]]] = deque(
            maxlen=1 + int(10 * guards.half_life / HOUR) + delay
        )
        """Worker-seconds and dispatches by key, newest last."""

    def weight(self, key: str) -> float:
        return self._overrides.get(key, self.due[key])

    def run(self, hours: int) -> list[Round]:
        for _ in range(hours):
            busy, tasks = self._serve(self._now + HOUR)
            self._hours.append({key: (busy[key], tasks[key]) for key in self.due})
            published = self._tune()
            total = sum(busy.values())
            share = {key: busy[key] / total for key in busy}
            self.rounds.append(Round(share, {key: self.weight(key) for key in self.due}, published))
        return self.rounds

    def _serve(self, until: float) -> tuple[dict[str, float], dict[str, int]]:
        busy, tasks = dict.fromkeys(self.due, 0.0), dict.fromkeys(self.due, 0)
        for at, _, key in self._ends:
            busy[key] += min(at, until) - self._now
        while True:
            self._fill()
            while self._free and (taken := self._node.take(0.0)):
                [task] = taken
                self._node.release(task, 0.0)  # the loop counts the free slots
                key = task.fairness_key
                self._queued[key] -= 1
                mean = self._run_time(key, self._now / HOUR)
                takes = mean * self._random.lognormvariate(-(self._noise**2) / 2, self._noise)
                heapq.heappush(self._ends, (self._now + takes, next(self._numbers), key))
                busy[key] += min(self._now + takes, until) - self._now
                tasks[key] += 1
                self._free -= 1
                self._fill()
            if not self._ends or self._ends[0][0] > until:
                self._now = until
                return busy, tasks
            self._now = heapq.heappop(self._ends)[0]
            self._free += 1

    def _fill(self) -> None:
        missing = [
            key
            for key, queued in self._queued.items()
            for _ in range(self._waiting - queued)
            if self._is_active(key, self._now / HOUR)
        ]
        if missing:
            self._node.push([self._task(key) for key in missing])

    def _task(self, key: str) -> Trigger:
        self._queued[key] += 1
        number = next(self._numbers)
        return Trigger(f"{number:012}", 1, "q", 0, "work", 5, key, self.due[key], None, seq=number)

    def _range(self, key: str) -> tuple[float, float]:
        weights = [self.weight(key), *(round.weights[key] for round in self.rounds[-24:])]
        return min(weights), max(weights)

    def _tune(self) -> bool:
        known = list(self._hours)[: len(self._hours) - self._delay]
        ages = range(self._delay + len(known) - 1, self._delay - 1, -1)
        keys = {
            key: Key(
                due,
                self.weight(key),
                [Used(age * HOUR, *hour[key]) for age, hour in zip(ages, known, strict=True)],
                of_day=self._range(key),
            )
            for key, due in self.due.items()
        }
        proposal = propose(keys, Situation(input_age=self._delay * HOUR), self.guards)
        if proposal.is_change:
            self._overrides.update(
                {change.fairness_key: change.guarded for change in proposal.changes}
            )
        return proposal.is_change
