"""The closed loop of weights and limits without chance: in each hour the keys divide the slots as a
fair queue does on average, and the two control laws use the measurements of these hours. What a key
asks for is known exactly, although a lake knows only a lower bound if tasks wait for a whole hour."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from fairlead.pipeline.tuning.canary import entitled
from fairlead.pipeline.tuning.control import DAY, Key, Used, horizon, propose
from fairlead.pipeline.tuning.guard_rails import Guards
from fairlead.pipeline.tuning.limit_control import Workers, propose_limits

HOUR = 3600.0
_ROUNDING = 1e-9


class Flow(NamedTuple):
    """Constant load of a key."""

    due: float
    run: float
    """Seconds of one task."""
    asks: float
    """Slots of all nodes that it could use on average; infinite if its tasks always wait."""
    peak: float
    """Slots that it could use in the busiest minute of an hour."""


class FlowLoop:
    """Nodes with `slots` each; every hour `limits` are computed and take effect, and weights if
    `has_weights`."""

    def __init__(
        self, guards: Guards, slots: int, nodes: int, limits: Mapping[str, int], has_weights: bool
    ) -> None:
        self.weights: dict[str, float] = {}
        self.limits = dict(limits)
        self._has_weights = has_weights
        self._guards = guards
        self._slots = slots
        self._nodes = nodes
        self._hours: deque[dict[str, Used]] = deque(maxlen=int(horizon(guards) / HOUR) + 1)
        self._of_day: deque[dict[str, float]] = deque(maxlen=round(DAY / HOUR))
        """Weights in force in the last day, newest last."""

    def run(self, flows: Mapping[str, Flow], hours: int) -> list[list[str]]:
        """Serve these keys and return the changes of each hour."""
        return [self._run(flows) for _ in range(hours)]

    def _run(self, flows: Mapping[str, Flow]) -> list[str]:
        mean = self._served(flows, {key: flow.asks for key, flow in flows.items()})
        peak = self._served(flows, {key: flow.peak for key, flow in flows.items()})
        self._hours.append(
            {
                key: Used(
                    0.0,
                    mean[key] * HOUR,
                    round(mean[key] * HOUR / flow.run),
                    HOUR,
                    flow.asks * HOUR,
                    max(mean[key], peak[key]),
                    peak[key] < flow.peak * (1 - _ROUNDING),
                )
                for key, flow in flows.items()
            }
        )
        aged = [
            {key: used._replace(age=age * HOUR) for key, used in hour.items()}
            for age, hour in enumerate(reversed(self._hours))
        ]
        keys = {
            key: Key(
                flow.due,
                self.weights.get(key, flow.due),
                [hour[key] for hour in aged if key in hour],
                None,
                self.limits.get(key),
                self._range(key, flow.due),
            )
            for key, flow in flows.items()
        }
        weights = propose(keys, self._guards) if self._has_weights else []
        limits = propose_limits(
            keys, [self._workers(hour) for hour in aged], self._nodes, False, self._guards
        )
        self.weights = {change.fairness_key: change.guarded for change in weights}
        self._of_day.append(self.weights)
        self.limits = {
            change.fairness_key: change.guarded for change in limits if change.guarded is not None
        }
        return [
            f"{change.fairness_key}: {change.now} to {change.guarded}"
            for change in (*weights, *limits)
            if change.guarded != change.now
        ]

    def _range(self, key: str, due: float) -> tuple[float, float]:
        weights = [weights.get(key, due) for weights in (*self._of_day, self.weights)]
        return min(weights), max(weights)

    def _served(self, flows: Mapping[str, Flow], asked: Mapping[str, float]) -> dict[str, float]:
        """Divide the slots by weight and run time, as a queue does that shares dispatches."""
        return entitled(
            {key: min(asked[key], self.limits.get(key, math.inf) * self._nodes) for key in flows},
            {key: self.weights.get(key, flow.due) * flow.run for key, flow in flows.items()},
            self._slots * self._nodes,
        )

    def _workers(self, hour: Mapping[str, Used]) -> Workers:
        busy = sum(used.busy for used in hour.values())
        peaks = sum(used.peak for used in hour.values())
        (age,) = {used.age for used in hour.values()}
        return Workers(age, busy, max(busy / HOUR, min(self._slots * self._nodes, peaks)))
