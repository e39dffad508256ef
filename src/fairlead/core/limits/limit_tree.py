"""Nested limits: on each node or, level by level, over the whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from typing import NamedTuple

from fairlead.core.limits.cluster_limits import ClusterLimit, OnNode
from fairlead.core.limits.limits import Full, positive
from fairlead.core.limits.permits import Permits
from fairlead.errors import ConfigurationError
from fairlead.model import Trigger

LevelName = tuple[str, str]
"""Identity of a level: ("total", ""), ("name", the task's) or ("fairness_key", the key)."""


class TreeLevel(NamedTuple):
    """One limit that applies to a trigger."""

    level: LevelName
    n: int
    is_cluster_wide: bool


class LimitTree:
    """Nested limits; a task needs a slot of every level that applies to it.

    `LimitTree(30, names={"payout": 15}, fairness_keys={"acme": 3})` lets 30 run in total, of these
    15 payouts and 3 of acme's, on each node. `per_fairness_key` holds for every key not named. A
    level given as `ClusterLimit(n)` holds over the whole cluster: `LimitTree(ClusterLimit(30),
    names={"payout": ClusterLimit(15)}, per_fairness_key=3)`. `name`: of the tree in the cluster, by
    default the name of the queue or task it belongs to. Raises ConfigurationError for bad values.
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
        self._running: dict[LevelName, int] = {}
        self._permits = Permits("", 0.0)
        self._press: Callable[[], None] = lambda: None

    @property
    def is_cluster_wide(self) -> bool:
        """Whether at least one level holds over the whole cluster."""
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
        for number, (level, n, is_cluster_wide) in enumerate(levels):
            if is_cluster_wide:
                if self._permits.take(_pool(level), n, now):
                    continue
                self._press()
            else:
                count = running.get(level, 0)
                if count < n:
                    running[level] = count + 1
                    continue
            self._release_levels(levels[:number])
            return Full((self, level))
        return None

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return self._release_levels(self._levels(trigger))

    cancel = release

    def roomy(self, pools: Iterable[str]) -> list[Hashable]:
        """See `fairlead.core.limits.cluster_limits.OnNode`."""
        return [(self, tuple(pool.split(":", 1))) for pool in pools]

    def pass_time(self, now: float) -> None:
        """See `fairlead.core.limits.cluster_limits.OnNode`."""

    def running(self) -> Mapping[LevelName, int]:
        """Return how many tasks run now on this node, by level that holds on each node, as
        {("total", ""): 3, ("name", "payout"): 2, ...}."""
        return dict(self._running)

    def _release_levels(self, levels: Iterable[TreeLevel]) -> list[Hashable]:
        """Release the slots of levels; return the levels that have room here."""
        running = self._running
        freed: list[Hashable] = []
        for level, _, is_cluster_wide in levels:
            if is_cluster_wide:
                pool = _pool(level)
                if self._permits.release(pool):
                    freed.append((self, level))
                elif self._permits.owes(pool):
                    self._press()
                continue
            left = running[level] - 1
            if left:
                running[level] = left
            else:
                del running[level]  # keeps the size of the dict to the levels in use
            freed.append((self, level))
        return freed

    def _levels(self, trigger: Trigger) -> list[TreeLevel]:
        """Return the levels that apply to the trigger, narrowest first, so that a parked column
        waits for what it really needs."""
        levels = []
        key, name = trigger.fairness_key, trigger.name
        if key in self._keys:
            levels.append(self._keys[key])
        elif self._per_key is not None:
            levels.append(
                TreeLevel(("fairness_key", key), self._per_key.n, self._per_key.is_cluster_wide)
            )
        if name in self._names:
            levels.append(self._names[name])
        levels.append(self._total)
        return levels


def _pool(level: LevelName) -> str:
    """Return the name of the pool of a level's permits."""
    return f"{level[0]}:{level[1]}"


def _level(kind: str, key: str, n: int | ClusterLimit) -> TreeLevel:
    what = f"LimitTree {kind} {key!r}" if key else "LimitTree"
    if not isinstance(n, ClusterLimit):
        return TreeLevel((kind, key), positive(what, n), False)
    if n.per is not None or n.name is not None:
        raise ConfigurationError(
            f"{what}: {n!r} as a level takes a number only; give the name to the tree"
        )
    return TreeLevel((kind, key), n.n, True)
