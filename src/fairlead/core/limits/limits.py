"""Concurrency policies: limits on tasks that run at once, or that start within a time.

Source of `RateLimit`: the generic cell rate algorithm, ITU-T Recommendation I.371
(https://www.itu.int/rec/T-REC-I.371).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from copy import copy
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

from fairlead.core import values
from fairlead.model import Trigger

Per = Literal["fairness_key", "name"]


class Full(NamedTuple):
    """Result of an acquire without a free slot. The trigger's column is parked until the limit
    frees a slot, or until `retry_at`."""

    limit: Hashable
    """Identity of the full limit, not None. Columns that wait for equal limits are released one
    after the other."""
    retry_at: float | None = None
    """Time of the next try (monotonic seconds), for policies that know when they have a free
    slot."""


class ConcurrencyPolicy(Protocol):
    """A limit; write your own with these four methods. All are called on the node's event loop and
    must not block. A policy that raises fails the attempt of that task and affects nothing else."""

    def column(self, trigger: Trigger) -> Hashable:
        """Return the column of the trigger. Triggers of one name in different columns never delay
        each other. Return None to have one column for the whole name."""

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        """Acquire a slot and return None, or return what is full. `now`: monotonic seconds."""

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        """Release the slot of a run that has ended; return the limits that have room again. `now`:
        monotonic seconds."""

    def cancel(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        """Release a slot whose task did not run here (another node claimed it); return the limits
        that have room again. `now`: monotonic seconds."""


@runtime_checkable
class StopsAll(Protocol):
    """A policy that knows which of its limits stop every task it applies to. While such a limit
    holds back a whole queue, fair tasks keep their positions; without this method, Fairlead tries
    to bring tasks into memory that the limit may not stop."""

    def stops_all(self, limit: Hashable) -> bool:
        """Return whether the limit, one that this or another policy returned in Full, stops all
        triggers that this policy applies to."""


@runtime_checkable
class PerNode(Protocol):
    """A policy of which each node has its own copy, so that several nodes of one process neither
    share slots nor wait for each other. Without this method, all nodes of a process use one
    object, and none learns when another one releases a slot."""

    def fresh(self) -> ConcurrencyPolicy:
        """Return an equal policy with no slot acquired."""


class Limit:
    """At most `n` tasks at once on each node; with `per`, at most `n` for each fairness key or each
    task name. Raises ConfigurationError for bad values."""

    def __init__(self, n: int, per: Per | None = None) -> None:
        self.n = values.whole("Limit n", n, 1)
        self.per = checked_per("Limit", per)
        self._running: dict[str | None, int] = {}

    def __repr__(self) -> str:
        return f"Limit({self.n}{'' if self.per is None else f', per={self.per!r}'})"

    def fresh(self) -> Limit:
        limit = copy(self)
        limit._running = {}
        return limit

    @property
    def room(self) -> int | None:
        """Number of free slots; None with `per`, where each key has its own."""
        return None if self.per is not None else self.n - self._running.get(None, 0)

    def column(self, trigger: Trigger) -> Hashable:
        return key_of(self.per, trigger)

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        key = key_of(self.per, trigger)
        running = self._running.get(key, 0)
        if running >= self.n:
            return Full((self, key))
        self._running[key] = running + 1
        return None

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        key = key_of(self.per, trigger)
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]  # keeps the size of the dict to the keys that run
        return ((self, key),)

    cancel = release

    def stops_all(self, limit: Hashable) -> bool:
        return limit == (self, None)


class RateLimit:
    """A token bucket: at most `burst` (default: n) + t * n / per starts in any t seconds, on each
    node; exact to the nanosecond.

    Waiting for a token spends no try and delays no other name. With `key`, each fairness key or
    name has a bucket of its own; full buckets are dropped, so that many keys cost nothing. Raises
    ConfigurationError for bad values.
    """

    def __init__(
        self, n: int, per: float, key: Per | None = None, burst: int | None = None
    ) -> None:
        self.n = values.whole("RateLimit n", n, 1)
        self.per = values.seconds("RateLimit per", per)
        self.key = checked_per("RateLimit", key)
        self.burst = self.n if burst is None else values.whole("RateLimit burst", burst, 1)
        # The generic cell rate algorithm keeps one number per bucket: when it is full again. The
        # unit is 1/n of a nanosecond, so that a token takes a whole number of units and nothing is
        # rounded.
        self._token = max(1, round(self.per * 1e9))
        self._burst_before = (self.burst - 1) * self._token
        self._full_at: dict[str | None, int] = {}
        self._drop_above = 1024
        self._latest = 0
        self._started: set[str] = set()
        """Ids of tasks that acquired a token at `_latest`."""

    def __repr__(self) -> str:
        return f"RateLimit({self.n}, per={self.per:g}, key={self.key!r}, burst={self.burst})"

    def fresh(self) -> RateLimit:
        limit = copy(self)
        limit._full_at, limit._started = {}, set()
        return limit

    def __len__(self) -> int:
        """Return the number of buckets in memory."""
        return len(self._full_at)

    def column(self, trigger: Trigger) -> Hashable:
        return key_of(self.key, trigger)

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        key = key_of(self.key, trigger)
        instant = round(now * 1e9) * self.n
        full_at = max(instant, self._full_at.get(key, instant))
        opens_at = full_at - self._burst_before
        if opens_at > instant:
            return Full((self, key), -(-opens_at // self.n) / 1e9)
        if len(self._full_at) >= self._drop_above:
            self._drop_full(instant)
        self._full_at[key] = full_at + self._token
        if instant != self._latest:
            self._latest = instant
            self._started.clear()
        self._started.add(trigger.id)
        return None

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return ()

    def cancel(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        # Return a token only if none was acquired at a later instant: a bucket that has filled up
        # since would overflow, and the rate would be exceeded. Time restores a token lost that way.
        if trigger.id not in self._started:
            return ()
        self._started.remove(trigger.id)
        key = key_of(self.key, trigger)
        self._full_at[key] -= self._token
        return ((self, key),)

    def stops_all(self, limit: Hashable) -> bool:
        return limit == (self, None)

    def _drop_full(self, instant: int) -> None:
        self._full_at = {
            key: full_at for key, full_at in self._full_at.items() if full_at > instant
        }
        self._drop_above = max(1024, 2 * len(self._full_at))


def key_of(per: Per | None, trigger: Trigger) -> str | None:
    """Return the key whose slots a trigger acquires; None if all triggers share the slots."""
    if per is None:
        return None
    return trigger.fairness_key if per == "fairness_key" else trigger.name


def checked_per(what: str, per: Per | None) -> Per | None:
    """Return `per` if it is known. Raises ConfigurationError."""
    if per is not None:
        values.one_of(what, per, *get_args(Per))
    return per
