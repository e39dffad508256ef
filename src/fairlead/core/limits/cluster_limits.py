"""Limits that hold over the whole cluster: how many tasks may run at once, or start in a while, on
all nodes together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeGuard

from fairlead.core.limits.limits import (
    ConcurrencyPolicy,
    Full,
    Per,
    checked_per,
    key_of,
    positive,
    seconds,
)
from fairlead.core.limits.permits import Permits
from fairlead.model import Trigger


class OnNode(ConcurrencyPolicy, Protocol):
    """A cluster-wide limit as one node books it, from the permits it has."""

    def roomy(self, pools: Iterable[str]) -> list[Hashable]:
        """These pools have room again: the limits to tell the table."""

    def pass_time(self, now: float) -> None:
        """Before a round: give back what time has freed."""


class ClusterWide(Protocol):
    """What is declared; each node makes its own of it."""

    name: str | None
    """Its name in the cluster; None: that of the queue or task it belongs to."""
    linger: float
    """Seconds for which a booking counts though its node may be gone."""
    ends_runs: bool
    """Runs must end when the permits end that they were booked from."""
    is_cluster_wide: bool
    """False: it holds on each node by itself, and needs no permits."""

    def on_node(self, permits: Permits, press: Callable[[], None]) -> OnNode:
        """For one node. `press` asks for a round soon."""


AnyLimit = ConcurrencyPolicy | ClusterWide
"""What a queue or a task may declare."""


def needs_permits(limit: AnyLimit | None) -> TypeGuard[ClusterWide]:
    """Whether it holds over the whole cluster, at some level at least."""
    return bool(getattr(limit, "is_cluster_wide", False))


class ClusterLimit:
    """At most `n` at once in the whole cluster; with `per`, at most `n` for each fairness key or
    each task name.

    It holds exactly as long as clocks run at the same rate within 5 %, and processes that are told
    to end do: see docs/explanation/cluster-limits.md for what a handler must do when its machine
    may be paused. A limit for several queues or tasks needs a `name`; all processes must declare
    the same `n`.
    """

    linger = 0.0
    ends_runs = True
    is_cluster_wide = True

    def __init__(self, n: int, per: Per | None = None, *, name: str | None = None) -> None:
        self.n = positive("ClusterLimit", n)
        self.per = checked_per("ClusterLimit", per)
        self.name = name

    def __repr__(self) -> str:
        told = [
            str(self.n),
            *(
                f"{key}={value!r}"
                for key, value in (("per", self.per), ("name", self.name))
                if value
            ),
        ]
        return f"ClusterLimit({', '.join(told)})"

    def on_node(self, permits: Permits, press: Callable[[], None]) -> OnNode:
        return _Limit(self, permits, press)


class ClusterRateLimit:
    """At most `n` + t * `n` / `per` starts in any t seconds in the whole cluster; with `key`, for
    each fairness key or name.

    n units, each of which starts one task in `per` seconds: a start books its unit for so long. See
    `ClusterLimit`.
    """

    ends_runs = False
    is_cluster_wide = True

    def __init__(
        self, n: int, per: float, key: Per | None = None, *, name: str | None = None
    ) -> None:
        self.n = positive("ClusterRateLimit", n)
        self.per = self.linger = seconds("ClusterRateLimit per", per)
        self.key = checked_per("ClusterRateLimit", key)
        self.name = name

    def __repr__(self) -> str:
        told = [
            f"{key}={value!r}" for key, value in (("key", self.key), ("name", self.name)) if value
        ]
        return f"ClusterRateLimit({', '.join([str(self.n), f'per={self.per:g}', *told])})"

    def on_node(self, permits: Permits, press: Callable[[], None]) -> OnNode:
        return _RateLimit(self, permits, press)


class _Limit:
    def __init__(self, declared: ClusterLimit, permits: Permits, press: Callable[[], None]) -> None:
        self._declared = declared
        self._permits = permits
        self._press = press

    def column(self, trigger: Trigger) -> Hashable:
        return key_of(self._declared.per, trigger)

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        pool = _pool(self._declared.per, trigger)
        if self._permits.take(pool, self._declared.n, now):
            return None
        self._press()
        return Full((self, pool))

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        pool = _pool(self._declared.per, trigger)
        if self._permits.give(pool):
            return ((self, pool),)
        if self._permits.owes(pool):
            self._press()
        return ()

    cancel = release

    def roomy(self, pools: Iterable[str]) -> list[Hashable]:
        return [(self, pool) for pool in pools]

    def pass_time(self, now: float) -> None:
        pass


class _RateLimit:
    def __init__(
        self, declared: ClusterRateLimit, permits: Permits, press: Callable[[], None]
    ) -> None:
        self._declared = declared
        self._permits = permits
        self._press = press
        self._cooling: deque[tuple[float, str]] = deque()
        """Until when a unit is booked, and of which pool; in this order, as all are booked for the
        same time."""
        self._of_pool: dict[str, deque[tuple[float, str]]] = {}
        """The same by pool, with the id of the task that started."""

    def column(self, trigger: Trigger) -> Hashable:
        return key_of(self._declared.key, trigger)

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        pool = _pool(self._declared.key, trigger)
        self.pass_time(now)
        if self._permits.take(pool, self._declared.n, now):
            until = now + self._declared.per
            self._cooling.append((until, pool))
            self._of_pool.setdefault(pool, deque()).append((until, trigger.id))
            return None
        self._press()
        cooling = self._of_pool.get(pool)
        return Full((self, pool), cooling[0][0] if cooling else None)

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return ()

    def cancel(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        pool = _pool(self._declared.key, trigger)
        cooling = self._of_pool.get(pool, deque())
        for unit in cooling:
            if unit[1] == trigger.id:
                cooling.remove(unit)
                return ((self, pool),) if self._permits.give(pool) else ()
        return ()  # it has cooled meanwhile

    def roomy(self, pools: Iterable[str]) -> list[Hashable]:
        return [(self, pool) for pool in pools]

    def pass_time(self, now: float) -> None:
        while self._cooling and self._cooling[0][0] <= now:
            _, pool = self._cooling.popleft()
            cooling = self._of_pool.get(pool)
            if cooling and cooling[0][0] <= now:
                cooling.popleft()
                self._permits.give(pool)
            if not cooling:
                self._of_pool.pop(pool, None)


def _pool(per: Per | None, trigger: Trigger) -> str:
    return key_of(per, trigger) or ""
