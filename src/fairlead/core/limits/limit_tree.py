"""Limits inside a limit: on each node, or, level by level, over the whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from typing import NamedTuple

from fairlead.core.limits.cluster_limits import ClusterLimit, OnNode
from fairlead.core.limits.limits import Full, positive
from fairlead.core.limits.permits import Permits
from fairlead.errors import ConfigurationError
from fairlead.model import Trigger

Place = tuple[str, str]
"""A level of a tree: ("total", ""), ("name", the task's) or ("fairness_key", the key)."""


class Level(NamedTuple):
    """One limit on a trigger's way."""

    place: Place
    n: int
    is_cluster_wide: bool


class LimitTree:
    """Limits inside a limit; all on a task's way must have room, or none is taken.

    `LimitTree(30, names={"payout": 15}, fairness_keys={"acme": 3})` lets 30 run in total, of these
    15 payouts and 3 of acme's, on each node. `per_fairness_key` holds for every key not named. A
    level given as `ClusterLimit(n)` holds over the whole cluster: `LimitTree(ClusterLimit(30),
    names={"payout": ClusterLimit(15)}, per_fairness_key=3)`. `name` is the tree's in the cluster;
    without one it is that of the queue or task it belongs to.
    """

    linger = 0.0
    ends_runs = True

    def __init__(
        self,
        total: int | ClusterLimit,
        *,
        names: Mapping[str, int | ClusterLimit] | None = None,
        fairness_keys: Mapping[str, int | ClusterLimit] | None = None,
        per_fairness_key: int | ClusterLimit | None = None,
        name: str | None = None,
    ) -> None:
        self._total = _level("total", "", total)
        self._names = {key: _level("name", key, n) for key, n in (names or {}).items()}
        self._keys = {
            key: _level("fairness_key", key, n) for key, n in (fairness_keys or {}).items()
        }
        self._per_key = (
            None if per_fairness_key is None else _level("fairness_key", "", per_fairness_key)
        )
        self.name = name
        self._running: dict[Place, int] = {}
        self._permits = Permits("", 0.0)
        self._press: Callable[[], None] = lambda: None

    @property
    def is_cluster_wide(self) -> bool:
        """At least one level is."""
        levels = (self._total, *self._names.values(), *self._keys.values(), self._per_key)
        return any(level.is_cluster_wide for level in levels if level is not None)

    def on_node(self, permits: Permits, press: Callable[[], None]) -> OnNode:
        """See `fairlead.core.limits.cluster_limits.ClusterWide`."""
        tree = copy(self)
        tree._running, tree._permits, tree._press = {}, permits, press
        return tree

    def column(self, trigger: Trigger) -> Hashable:
        key = trigger.fairness_key
        return key if self._per_key is not None or key in self._keys else None

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        running = self._running
        levels = self._levels(trigger)
        for number, (place, n, is_cluster_wide) in enumerate(levels):
            if is_cluster_wide:
                if self._permits.take(_pool(place), n, now):
                    continue
                self._press()
            else:
                count = running.get(place, 0)
                if count < n:
                    running[place] = count + 1
                    continue
            self._give_back(levels[:number])
            return Full((self, place))
        return None

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return self._give_back(self._levels(trigger))

    cancel = release

    def roomy(self, pools: Iterable[str]) -> list[Hashable]:
        """See `fairlead.core.limits.cluster_limits.OnNode`."""
        return [(self, tuple(pool.split(":", 1))) for pool in pools]

    def pass_time(self, now: float) -> None:
        """See `fairlead.core.limits.cluster_limits.OnNode`."""

    def running(self) -> Mapping[Place, int]:
        """What runs now on this node at each level that is its own, as {("total", ""): 3, ("name",
        "payout"): 2, ...}."""
        return dict(self._running)

    def _give_back(self, levels: Iterable[Level]) -> list[Hashable]:
        """Answers those that have room here."""
        running = self._running
        freed: list[Hashable] = []
        for place, _, is_cluster_wide in levels:
            if is_cluster_wide:
                pool = _pool(place)
                if self._permits.give(pool):
                    freed.append((self, place))
                elif self._permits.owes(pool):
                    self._press()
                continue
            left = running[place] - 1
            if left:
                running[place] = left
            else:
                del running[place]  # as small as what runs
            freed.append((self, place))
        return freed

    def _levels(self, trigger: Trigger) -> list[Level]:
        """The levels on this trigger's path, the narrowest first: a parked column waits for what it
        really needs."""
        levels = []
        key, name = trigger.fairness_key, trigger.name
        if key in self._keys:
            levels.append(self._keys[key])
        elif self._per_key is not None:
            levels.append(
                Level(("fairness_key", key), self._per_key.n, self._per_key.is_cluster_wide)
            )
        if name in self._names:
            levels.append(self._names[name])
        levels.append(self._total)
        return levels


def _pool(place: Place) -> str:
    """What its permits are called."""
    return f"{place[0]}:{place[1]}"


def _level(kind: str, key: str, n: int | ClusterLimit) -> Level:
    what = f"LimitTree {kind} {key!r}" if key else "LimitTree"
    if not isinstance(n, ClusterLimit):
        return Level((kind, key), positive(what, n), False)
    if n.per is not None or n.name is not None:
        raise ConfigurationError(
            f"{what}: {n!r} as a level takes a number only; the tree itself has the name"
        )
    return Level((kind, key), n.n, True)
