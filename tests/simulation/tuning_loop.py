"""The closed loop of weights and limits on a virtual clock: the trigger table and slot ledger of a
node, the hourly measurements that a lake would have, and the two control laws that use them."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import Trigger
from fairlead.pipeline.tuning.control import Key, Used, propose
from fairlead.pipeline.tuning.guard_rails import Guards
from fairlead.pipeline.tuning.limit_control import Workers, propose_limits
from tests import builders

MINUTE, HOUR = 60.0, 3600.0


class Load(NamedTuple):
    """Load of a key."""

    run: float
    """Seconds of one task."""
    asks: float
    """Workers that the key could use on average; if more than the slots, its tasks always wait."""
    due: float = 1.0


class Round(NamedTuple):
    """One hour of the loop."""

    limits: dict[str, int]
    """Limits at the end of the hour."""
    peak: dict[str, float]
    """Greatest number of workers of each key in a minute."""
    share: dict[str, float]
    """Fraction of the worker time, by key."""
    weights: dict[str, float]
    """Weights at the end of the hour."""
    busy: float
    """Used fraction of the workers, 0 to 1."""
    wait: dict[str, float]
    """99th percentile of the wait in seconds, by key, for keys whose tasks do not always wait."""
    published: bool


class _Hour:
    """Measurements of one hour."""

    def __init__(self) -> None:
        self.busy: dict[tuple[str, int], float] = {}
        """Worker-seconds by key and minute."""
        self.tasks: dict[str, int] = {}
        self.asked: dict[str, float] = {}
        self.waits: dict[str, list[float]] = {}

    def of(self, key: str) -> list[float]:
        return [self.busy.get((key, minute), 0.0) for minute in range(60)]

    def peak(self, key: str) -> float:
        return max(self.of(key)) / MINUTE


class Loop:
    """A node with `slots`; every hour weights and limits are computed from the measurements and
    take effect at once.

    `load` gives the load of the keys at an hour; arrivals are a Poisson process. `weights` are fixed
    and not tuned."""

    def __init__(
        self,
        load: Callable[[float], Mapping[str, Load]],
        guards: Guards,
        slots: int = 10,
        seed: int = 1,
        weights: Mapping[str, float] | None = None,
        limits: bool = True,
    ) -> None:
        self.guards = guards
        self.slots = slots
        self.rounds: list[Round] = []
        self._load = load
        self._keys = list(load(0.0))
        self._has_limits = limits
        self._random = random.Random(seed)
        self._now = 0.0
        self._weights = dict(weights or {})
        self._has_weights = weights is not None
        self._limits: dict[str, int] = {}
        self._slot_ledger = SlotLedger(slots)
        self._table = TriggerTable(self._slot_ledger)
        self._table.weigh("q", self._weights)
        self._numbers = itertools.count(1)
        self._ends: list[tuple[float, int, Trigger]] = []
        self._arrivals: list[tuple[float, int, str]] = []
        self._waiting: dict[str, dict[str, tuple[float, float]]] = {key: {} for key in self._keys}
        """Arrival and run time of each waiting task."""
        self._hours: deque[_Hour] = deque(maxlen=1 + int(10 * guards.half_life / HOUR))
        self._hour = _Hour()
        for key in self._keys:
            self._next_arrival(key)

    def run(self, hours: int) -> list[Round]:
        for _ in range(hours):
            self._hour = _Hour()
            for key in self._keys:
                self._hour.asked[key] = sum(run for _, run in self._waiting[key].values())
            self._serve(self._now + HOUR)
            self._hours.append(self._hour)
            published = self._tune()
            self.rounds.append(self._round(published))
        return self.rounds

    def _round(self, published: bool) -> Round:
        hour = self._hour
        peak = {key: hour.peak(key) for key in self._keys}
        waits = {
            key: sorted(waits)[len(waits) * 99 // 100] for key, waits in hour.waits.items() if waits
        }
        busy = sum(hour.busy.values())
        share = {key: sum(hour.of(key)) / busy for key in self._keys}
        weights = {key: self._weight(key) for key in self._keys}
        return Round(
            dict(self._limits), peak, share, weights, busy / HOUR / self.slots, waits, published
        )

    def _weight(self, key: str) -> float:
        return self._weights.get(key, self._load(self._now / HOUR)[key].due)

    def _of_day(self, key: str) -> tuple[float, float]:
        weights = [self._weight(key), *(round.weights[key] for round in self.rounds[-24:])]
        return min(weights), max(weights)

    # the node -------------------------------------------------------------------------------------

    def _serve(self, until: float) -> None:
        for _, _, trigger in self._ends:
            self._count(trigger.fairness_key, self._now, min(self._end_of(trigger), until))
        while True:
            self._start(until)
            at_end = self._ends[0][0] if self._ends else math.inf
            at_arrival = self._arrivals[0][0] if self._arrivals else math.inf
            if min(at_end, at_arrival) > until:
                self._now = until
                return
            self._now = min(at_end, at_arrival)
            if at_end <= at_arrival:
                trigger = heapq.heappop(self._ends)[2]
                self._table.freed(self._slot_ledger.release(trigger, self._now))
            else:
                key = heapq.heappop(self._arrivals)[2]
                self._arrive(key, self._load(self._now / HOUR)[key])
                self._next_arrival(key)

    def _start(self, until: float) -> None:
        loads = self._load(self._now / HOUR)
        while True:
            for key, load in loads.items():
                while load.asks >= self.slots and len(self._waiting[key]) < self.slots:
                    self._arrive(key, load)
            taken, _ = self._table.take(self.slots, self._now)
            if not taken:
                return
            for trigger in taken:
                key = trigger.fairness_key
                came, run = self._waiting[key].pop(trigger.id)
                heapq.heappush(self._ends, (self._now + run, next(self._numbers), trigger))
                self._count(key, self._now, min(self._now + run, until))
                self._hour.tasks[key] = self._hour.tasks.get(key, 0) + 1
                self._hour.waits.setdefault(key, []).append(self._now - came)

    def _end_of(self, trigger: Trigger) -> float:
        return next(at for at, _, running in self._ends if running is trigger)

    def _count(self, key: str, since: float, until: float) -> None:
        """Add a run to the minutes it spans."""
        start = (since // HOUR) * HOUR
        minute = int((since - start) // MINUTE)
        while since < until:
            end = min(until, start + (minute + 1) * MINUTE)
            self._hour.busy[key, minute] = self._hour.busy.get((key, minute), 0.0) + end - since
            since, minute = end, minute + 1

    def _next_arrival(self, key: str) -> None:
        load = self._load(self._now / HOUR)[key]
        if load.asks >= self.slots:  # tasks always wait; check again later
            heapq.heappush(self._arrivals, (self._now + HOUR, next(self._numbers), key))
        else:
            rate = max(load.asks, 1e-6) / load.run
            heapq.heappush(
                self._arrivals,
                (self._now + self._random.expovariate(rate), next(self._numbers), key),
            )

    def _arrive(self, key: str, load: Load) -> None:
        number = next(self._numbers)
        task = builders.trigger(f"{number:012}", "work", key, weight=load.due, seq=number)
        self._waiting[key][task.id] = (self._now, load.run)
        self._hour.asked[key] = self._hour.asked.get(key, 0.0) + load.run
        self._table.push(task)

    # the feedback ---------------------------------------------------------------------------------

    def _tune(self) -> bool:
        load = self._load(self._now / HOUR)
        ages = [HOUR * age for age in range(len(self._hours) - 1, -1, -1)]
        keys = {
            key: Key(
                load[key].due,
                self._weight(key),
                [self._used(key, age, hour) for age, hour in zip(ages, self._hours, strict=True)],
                None,
                self._limits.get(key),
                self._of_day(key),
            )
            for key in self._keys
        }
        workers = [
            Workers(
                age,
                sum(hour.busy.values()),
                max(map(sum, zip(*(hour.of(key) for key in self._keys), strict=True))) / MINUTE,
            )
            for age, hour in zip(ages, self._hours, strict=True)
        ]
        weights = propose(keys, self.guards)
        changes = propose_limits(keys, workers, 1, False, self.guards) if self._has_limits else []
        if not self._has_weights:
            self._weights.update({change.fairness_key: change.guarded for change in weights})
        self._limits = {
            change.fairness_key: change.guarded for change in changes if change.guarded is not None
        }
        self._table.set_limits("q", self._limits)
        tuned = [] if self._has_weights else weights
        return any(change.is_change for change in (*tuned, *changes))

    def _used(self, key: str, age: float, hour: _Hour) -> Used:
        busy = hour.of(key)
        waited = bool(self._waiting[key])
        asked = max(hour.asked.get(key, 0.0), sum(busy))
        return Used(age, sum(busy), hour.tasks.get(key, 0), HOUR, asked, hour.peak(key), waited)
