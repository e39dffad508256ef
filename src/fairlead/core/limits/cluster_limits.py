"""Cluster-wide limits: how many tasks may run at once, or start within a time, on all nodes
together.

A limit has one pool of permits, or one for each fairness key or task name. In a round, a node
renews its permits in the permit ledger and asks for more.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeGuard, cast

from fairlead.core import values
from fairlead.core.limits.limits import (
    ConcurrencyPolicy,
    Full,
    Per,
    checked_per,
    key_of,
)
from fairlead.core.limits.permits import Pool
from fairlead.core.limits.sharded_permits import Permits
from fairlead.model import Trigger


class OnNode(ConcurrencyPolicy, Protocol):
    """The part of a cluster-wide limit on one node, which acquires from the node's permits."""

    def limits_of(self, pools: Iterable[str]) -> list[Hashable]:
        """Return the limits of these pools, as `Full` names them, because the pools have free
        permits again."""

    def refused_by(self, limit: Hashable) -> Pool | None:
        """Return the pool without a free permit because of which an acquire has just returned
        Full(limit), or None if another limit was full."""

    def keep(self, trigger: Trigger, awaited: Pool, now: float) -> None:
        """Keep the acquired permits of the trigger while it waits for a permit of `awaited`. The
        next call for this trigger is `cancel`."""


class ClusterWide(Protocol):
    """A declared limit, of which each node makes its own part."""

    name: str | None
    """Name of the limit in the cluster. By default, the name of its queue or task."""
    linger: float
    """Seconds for which an acquired permit still counts after its node may have stopped."""
    ends_runs: bool
    """Whether runs must end when their permits expire."""
    is_cluster_wide: bool
    """Whether the limit holds over the cluster; if not, it holds on each node and needs no
    permits."""

    def on_node(self, permits: Permits, request_round: Callable[[], None]) -> OnNode:
        """Return the limit's part on one node. `request_round`: makes the node do a round soon."""


AnyLimit = ConcurrencyPolicy | ClusterWide
"""Any limit that a queue or a task may declare."""


def check_limit(what: str, limit: object) -> None:
    """Raise ConfigurationError unless a queue or task may declare this as its limit."""
    if limit is not None and not hasattr(limit, "on_node"):
        values.methods(what, limit, "column", "acquire", "release", "cancel")


def is_on_node(policy: ConcurrencyPolicy) -> TypeGuard[OnNode]:
    """Return whether the policy is the part of a cluster-wide limit on one node."""
    return bool(getattr(policy, "is_cluster_wide", False))


def needs_permits(limit: AnyLimit | None) -> TypeGuard[ClusterWide]:
    """Return whether the limit, or one of its levels, holds over the whole cluster."""
    return bool(getattr(limit, "is_cluster_wide", False))


class ClusterLimit:
    """At most `n` tasks at once in the whole cluster; with `per`, at most `n` for each fairness key
    or each task name. Raises ConfigurationError for bad values.

    The limit is exact as long as clocks run at the same rate within 5 %, and processes end when
    they must: docs/explanation/cluster-limits.md says what a handler must do if its machine may be
    paused. A limit for several queues or tasks needs a `name`; all processes must declare the same
    `n`.
    """

    linger = 0.0
    ends_runs = True
    is_cluster_wide = True

    def __init__(self, n: int, per: Per | None = None, *, name: str | None = None) -> None:
        self.n = values.whole("ClusterLimit n", n, 1)
        self.per = checked_per("ClusterLimit", per)
        self.name = None if name is None else values.text("ClusterLimit name", name)

    def __repr__(self) -> str:
        return f"ClusterLimit({self.n}{_shown(per=self.per, name=self.name)})"

    def on_node(self, permits: Permits, request_round: Callable[[], None]) -> OnNode:
        return _NodeLimit(self.n, self.per, permits, request_round)


class ClusterRateLimit:
    """At most `n` starts in any `per` seconds in the whole cluster; with `key`, for each fairness
    key or name. Raises ConfigurationError for bad values.

    The limit consists of n units. A task takes one before it is claimed, and gives it back `per`
    seconds after its executor got it. See `ClusterLimit`.
    """

    ends_runs = False
    is_cluster_wide = True

    def __init__(
        self, n: int, per: float, key: Per | None = None, *, name: str | None = None
    ) -> None:
        self.n = values.whole("ClusterRateLimit n", n, 1)
        self.per = self.linger = values.seconds("ClusterRateLimit per", per)
        self.key = checked_per("ClusterRateLimit", key)
        self.name = None if name is None else values.text("ClusterRateLimit name", name)

    def __repr__(self) -> str:
        options = _shown(key=self.key, name=self.name)
        return f"ClusterRateLimit({self.n}, per={self.per:g}{options})"

    def on_node(self, permits: Permits, request_round: Callable[[], None]) -> OnNode:
        return NodeRateLimit(self, permits, request_round)


def _shown(**options: str | None) -> str:
    """Return the options that are set, as a call has them."""
    return "".join(f", {name}={value!r}" for name, value in options.items() if value)


class _Pools:
    """The part on one node of a limit with one pool, or with one for each fairness key or name."""

    is_cluster_wide = True

    def __init__(
        self, n: int, per: Per | None, permits: Permits, request_round: Callable[[], None]
    ) -> None:
        self._n = n
        self._per = per
        self._permits = permits
        self._request_round = request_round

    def column(self, trigger: Trigger) -> Hashable:
        return key_of(self._per, trigger)

    def stops_all(self, limit: Hashable) -> bool:
        return self._per is None and limit == (self, "")

    def limits_of(self, pools: Iterable[str]) -> list[Hashable]:
        return [(self, pool) for pool in pools]

    def refused_by(self, limit: Hashable) -> Pool | None:
        _, pool = cast(tuple[object, str], limit)
        return self._permits.pool(pool)

    def keep(self, trigger: Trigger, awaited: Pool, now: float) -> None:
        self._permits.pool(self._pool_of(trigger)).keep(awaited, now)

    def _pool_of(self, trigger: Trigger) -> str:
        return key_of(self._per, trigger) or ""


class _NodeLimit(_Pools):
    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        pool = self._pool_of(trigger)
        if self._permits.take(pool, self._n, now):
            return None
        self._request_round()
        return Full((self, pool))

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        pool = self._pool_of(trigger)
        if self._permits.release(pool):
            return ((self, pool),)
        if self._permits.must_return(pool):
            self._request_round()
        return ()

    cancel = release


class NodeRateLimit(_Pools):
    """The part on one node of a `ClusterRateLimit`."""

    def __init__(
        self, declared: ClusterRateLimit, permits: Permits, request_round: Callable[[], None]
    ) -> None:
        super().__init__(declared.n, declared.key, permits, request_round)
        self._seconds = declared.per
        self._starting: dict[str, str] = {}
        """Pool of each task that has a unit and has not started, by the id of the task."""

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        pool = self._pool_of(trigger)
        if self._permits.take(pool, self._n, now):
            self._starting[trigger.id] = pool
            return None
        self._request_round()
        units = self._permits.pool(pool)
        if units.cooling:
            return Full((self, pool), units.cooling[0])
        return Full((self, pool), now + self._seconds if units.running else None)

    def started(self, trigger: Trigger, now: float) -> None:
        """Let the time of the unit begin: the executor has the task."""
        if (pool := self._starting.pop(trigger.id, None)) is not None:
            insort(self._permits.pool(pool).cooling, now + self._seconds)

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        self.started(trigger, now)
        return ()

    def cancel(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        pool = self._starting.pop(trigger.id, None)
        if pool is None:
            return ()  # the task has started
        return ((self, pool),) if self._permits.release(pool) else ()
