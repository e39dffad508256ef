"""Nested limits, each of which applies to each node or to the whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from typing import NamedTuple, cast

from fairlead.core import values
from fairlead.core.limits.cluster_limits import ClusterLimit, OnNode
from fairlead.core.limits.limits import Full
from fairlead.core.limits.permits import Pool
from fairlead.core.limits.sharded_permits import Permits
from fairlead.errors import ConfigurationError
from fairlead.model import Trigger

LevelName = tuple[str, str]
"""Kind and key of a level: ("total", ""), ("name", task name) or ("fairness_key", fairness key)."""


class TreeLevel(NamedTuple):
    """One limit that applies to a trigger."""

    level: LevelName
    n: int
    is_cluster_wide: bool


class TreeLimit(NamedTuple):
    """Identity of one level of a tree, as a limit that stops triggers."""

    tree: LimitTree
    level: LevelName
    is_cluster_wide: bool


def _levels(what: str, given: Mapping[str, int | ClusterLimit] | None) -> dict[str, TreeLevel]:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(
            f"LimitTree: {values.brief(given)} of {what}s: use a map by {what}"
        )
    return {
        values.text(f"{what} of a LimitTree", key, may_be_empty=True): _level(what, key, n)
        for key, n in (given or {}).items()
    }


class LimitTree:
    """Nested limits; a task needs a slot of every level that applies to it.

    `LimitTree(30, names={"payout": 15}, fairness_keys={"acme": 3})` allows 30 tasks at once on each
    node, at most 15 of them named "payout" and at most 3 with the fairness key "acme".
    `per_fairness_key` limits each key that `fairness_keys` does not contain. A level given as
    `ClusterLimit(n)` limits the whole cluster, as in `LimitTree(ClusterLimit(30), names={"payout":
    ClusterLimit(15)}, per_fairness_key=3)`. `name` is the name of the tree in the cluster; the
    default is the name of the queue or task that declares the tree. Raises ConfigurationError for
    bad values.
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
        self._names = _levels("name", names)
        self._keys = _levels("fairness_key", fairness_keys)
        self._per_key = (
            None if per_fairness_key is None else _level("fairness_key", "", per_fairness_key)
        )
        self.name = None if name is None else values.text("LimitTree name", name)
        self._running: dict[LevelName, int] = {}
        self._permits = Permits("", 0.0)
        self._request_round: Callable[[], None] = lambda: None

    @property
    def n(self) -> int:
        """Slots of the level that applies to every task."""
        return self._total.n

    @property
    def is_cluster_wide(self) -> bool:
        """Whether at least one level limits the whole cluster."""
        levels = (self._total, *self._names.values(), *self._keys.values(), self._per_key)
        return any(level.is_cluster_wide for level in levels if level is not None)

    def on_node(self, permits: Permits, request_round: Callable[[], None]) -> OnNode:
        """See `fairlead.core.limits.cluster_limits.ClusterWide`."""
        tree = self.fresh()
        tree._permits, tree._request_round = permits, request_round
        return tree

    def fresh(self) -> LimitTree:
        tree = copy(self)
        tree._running = {}
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
                self._request_round()
                awaited = self._permits.pool(_pool(level))
                self._keep(levels[:number], awaited, now)
            else:
                count = running.get(level, 0)
                if count < n:
                    running[level] = count + 1
                    continue
            self._release_levels(levels[:number])
            return Full(TreeLimit(self, level, is_cluster_wide))
        return None

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return self._release_levels(self._levels(trigger))

    cancel = release

    def stops_all(self, limit: Hashable) -> bool:
        return isinstance(limit, TreeLimit) and limit[:2] == (self, self._total.level)

    def limits_of(self, pools: Iterable[str]) -> list[Hashable]:
        """See `fairlead.core.limits.cluster_limits.OnNode`."""
        return [TreeLimit(self, cast(LevelName, tuple(pool.split(":", 1))), True) for pool in pools]

    def refused_by(self, limit: Hashable) -> Pool | None:
        """See `fairlead.core.limits.cluster_limits.OnNode`."""
        assert isinstance(limit, TreeLimit)
        return self._permits.pool(_pool(limit.level)) if limit.is_cluster_wide else None

    def keep(self, trigger: Trigger, awaited: Pool, now: float) -> None:
        """See `fairlead.core.limits.cluster_limits.OnNode`."""
        self._keep(self._levels(trigger), awaited, now)

    def _keep(self, levels: Iterable[TreeLevel], awaited: Pool, now: float) -> None:
        for level, _, is_cluster_wide in levels:
            if is_cluster_wide:
                self._permits.pool(_pool(level)).keep(awaited, now)

    def running(self) -> Mapping[LevelName, int]:
        """Return the number of tasks that run on this node, by level, without cluster-wide levels:
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
                    freed.append(TreeLimit(self, level, True))
                elif self._permits.must_return(pool):
                    self._request_round()
                continue
            left = running[level] - 1
            if left:
                running[level] = left
            else:
                del running[level]  # keep only the levels in use
            freed.append(TreeLimit(self, level, False))
        return freed

    def _levels(self, trigger: Trigger) -> list[TreeLevel]:
        """Return the levels that apply to the trigger, narrowest first. A trigger that finds its
        key and the total full then waits for a slot of its key."""
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
        return TreeLevel((kind, key), values.whole(f"{what} n", n, 1), False)
    if n.per is not None or n.name is not None:
        raise ConfigurationError(
            f"{what}: {values.brief(n)} is a level and takes a number only; use LimitTree(name=...)"
        )
    return TreeLevel((kind, key), n.n, True)
