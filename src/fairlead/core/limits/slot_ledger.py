"""The slot ledger: acquires a slot of every limit that applies to a trigger, or of none."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from fairlead.core.limits.cluster_limits import NodeRateLimit, is_on_node
from fairlead.core.limits.key_limits import KeyLimit, KeyLimits
from fairlead.core.limits.limit_tree import TreeLimit
from fairlead.core.limits.limits import ConcurrencyPolicy, Full, StopsAll
from fairlead.core.limits.permits import Pool
from fairlead.model import Trigger

log = logging.getLogger("fairlead.slots")

SHORTEST_WAIT = 0.001
"""Seconds until a full policy whose `retry_at` has passed is tried again."""

Chain = tuple[ConcurrencyPolicy, ...]


class OrderingKey(NamedTuple):
    """Identity of the limit that lets one task of an ordering key run at a time."""

    queue: str
    ordering_key: str


class Unregistered(NamedTuple):
    """Identity of the limit that stops tasks of a name without a handler on this node."""

    name: str


class _NotHere:
    """Policy of the tasks that this node has no handler for: always full."""

    room = 0

    def column(self, trigger: Trigger) -> Hashable:
        return None

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        return Full(Unregistered(trigger.name))

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return ()

    cancel = release


def stops_all_nodes(limit: Hashable) -> bool:
    """Return whether a limit that stops a trigger here stops it on every node: its ordering key, or
    a limit of the cluster."""
    if isinstance(limit, OrderingKey):
        return True
    if isinstance(limit, TreeLimit):  # other levels of its tree may limit each node
        return limit.is_cluster_wide
    return isinstance(limit, tuple) and any(
        getattr(part, "is_cluster_wide", False) for part in limit
    )


class PolicyFailed(Exception):
    """Raised if a concurrency policy raises or returns an invalid value. No slot of the trigger is
    then acquired."""

    def __init__(self, policy: object, trigger: Trigger, error: Exception) -> None:
        super().__init__(
            f"{type(error).__name__} in the concurrency policy {type(policy).__name__}: {error}"
        )
        self.policy = policy
        self.trigger = trigger
        self.error = error


class _Chains(dict[tuple[str, str], Chain]):
    """Policies of each (queue, name), joined at first use, so that a trigger costs one look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.of_queue: dict[str, Chain] = {}
        self.of_task: dict[tuple[str, str], Chain] = {}
        self.names: Collection[str] | None = None
        """Names of the tasks that may start here, or None for all names."""

    def __missing__(self, key: tuple[str, str]) -> Chain:
        if self.names is not None and key[1] not in self.names:
            return (_NOT_HERE,)  # not kept, because the number of such names is unbounded
        chain = self[key] = self.of_task.get(key, ()) + self.of_queue.get(key[0], ())
        return chain


_NOT_HERE = _NotHere()


class SlotLedger:
    """The limits of one node. `slots` bounds all that runs here; queues and tasks add policies.
    Tasks of one ordering key run one at a time, tasks of a fairness key at most as `set_limits`
    allows. All limits apply together, so the tightest one stops a trigger."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._acquired = 0
        self._chains = _Chains()
        self._keys = KeyLimits()
        self._ordering_keys: dict[OrderingKey, str] = {}
        """Id of the task that holds each ordering key: it runs, or has the reservation."""
        self._awaited: set[OrderingKey] = set()
        """Ordering keys reserved for a task without a slot: it waits for a retry, or runs on
        another node."""

    @property
    def acquired(self) -> int:
        """Number of slots of the node that are taken."""
        return self._acquired

    @property
    def room(self) -> int:
        """Number of slots of the node that are free; with none, no acquire can succeed."""
        return self._slots - self._acquired

    def register_queue(self, queue: str, *policies: ConcurrencyPolicy | None) -> None:
        """Apply policies to every task of the queue. Call it before the first acquire."""
        self._chains.of_queue[queue] = tuple(policy for policy in policies if policy is not None)
        self._chains.clear()

    def register_task(self, queue: str, name: str, *policies: ConcurrencyPolicy | None) -> None:
        """Apply policies to tasks of this name, ahead of their queue's. Call it before the first
        acquire."""
        self._chains.of_task[queue, name] = tuple(
            policy for policy in policies if policy is not None
        )
        self._chains.clear()

    def register_names(self, names: Collection[str]) -> None:
        """Start no task of another name: it waits for a node that has a handler for it. Call it
        before the first acquire."""
        self._chains.names = names
        self._chains.clear()

    def room_of(self, queue: str, name: str) -> float:
        """Return how many more tasks of this name could acquire their slots now, as far as its
        limits can tell; infinity if no limit can, 0 for a name without a handler here."""
        found = [getattr(policy, "room", None) for policy in self._chains[queue, name]]
        rooms = [float(room) for room in found if isinstance(room, int)]
        return min(rooms, default=math.inf)

    def needs_permits(self, queue: str, name: str) -> bool:
        """Return whether a limit of the cluster applies to tasks of this name."""
        return any(is_on_node(policy) for policy in self._chains[queue, name])

    def limits(self, queue: str) -> Mapping[str, int]:
        """Return the limits set by `set_limits`: tasks at once on this node, by fairness key."""
        return self._keys.limits(queue)

    def set_limits(self, queue: str, limits: Mapping[str, int]) -> list[KeyLimit]:
        """Set the limits of fairness keys at any time; return those that have room. If the set of
        limited keys changes, columns change too, so call TriggerTable.set_limits instead."""
        return self._keys.set(queue, limits)

    def stops_all(self, limit: Hashable, queue: str) -> bool:
        """Return whether a full limit stops all tasks of the queue that may start here."""
        chains = [self._chains[each] for each in self._chains.of_task if each[0] == queue]
        if self._chains.names is None:  # tasks of other names too
            chains.append(self._chains.of_queue.get(queue, ()))
        return all(
            chain == (_NOT_HERE,)
            or any(isinstance(policy, StopsAll) and policy.stops_all(limit) for policy in chain)
            for chain in chains
        )

    def uses(self, trigger: Trigger, policy: ConcurrencyPolicy) -> bool:
        """Return whether the policy applies to the trigger."""
        return policy in self._chains[trigger.queue, trigger.name]

    def column(self, trigger: Trigger) -> Hashable:
        """Return the column of a trigger. Triggers have equal columns if and only if the same
        limits stop them, apart from their ordering keys."""
        key = (trigger.queue, trigger.name)
        chain = self._chains[key]
        limit = self._keys.of(trigger) if self._keys.has_any else None
        if not chain and limit is None:
            return key
        try:
            parts = tuple([policy.column(trigger) for policy in chain])
            hash(parts)
        except Exception as error:
            # The acquire reports the failure if it still occurs then; until then the whole name
            # waits in one column.
            log.debug(
                "a concurrency policy failed to return a column",
                extra={"task": trigger.name, "error": repr(error)},
            )
            parts = ()
        return (*key, *parts) if limit is None else (*key, limit, *parts)

    def stops_all_keys(self, trigger: Trigger) -> bool:
        """Return whether the limits of a trigger stop its name alike for every fairness key. A name
        without a handler here is stopped for all keys."""
        if self._chains[trigger.queue, trigger.name] == (_NOT_HERE,):
            return True
        if self._keys.limits(trigger.queue):
            return False
        other = msgspec.structs.replace(trigger, fairness_key=f"{trigger.fairness_key}\0")
        return self.column(trigger) == self.column(other)

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        """Acquire a slot of every limit, or return the limit that is full and acquire none. The
        caller has checked `room`. Raises PolicyFailed."""
        chain = self._chains[trigger.queue, trigger.name]
        if not chain and trigger.ordering_key is None:
            if self._keys.has_any and (limit := self._keys.full(trigger)) is not None:
                return Full(limit)
            self._keys.acquire(trigger)
            self._acquired += 1
            return None
        # Check the ordering key first, because it is the narrowest limit. A parked trigger whose
        # key is busy then waits for its key only.
        ordering_key = (
            OrderingKey(trigger.queue, trigger.ordering_key)
            if trigger.ordering_key is not None
            else None
        )
        if not self.may_have_key(trigger):
            return Full(ordering_key)
        if self._keys.has_any and (limit := self._keys.full(trigger)) is not None:
            return Full(limit)
        for count, policy in enumerate(chain):
            try:
                full = policy.acquire(trigger, now)
                if full is not None:
                    full = _checked(full, now)
            except Exception as error:
                self._release_all(chain[:count], "cancel", trigger, now)
                raise PolicyFailed(policy, trigger, error) from error
            if full is not None:
                if count and is_on_node(policy):
                    _keep_permits(chain[:count], trigger, policy.refused_by(full.limit), now)
                self._release_all(chain[:count], "cancel", trigger, now)
                return full
        if ordering_key is not None:
            self._ordering_keys[ordering_key] = trigger.id
            self._awaited.discard(ordering_key)
        self._keys.acquire(trigger)
        self._acquired += 1
        return None

    def may_have_key(self, trigger: Trigger) -> bool:
        """Return whether the trigger may acquire its ordering key: it has none, no task holds the
        key, or the key is reserved for this task, which has no slot."""
        if trigger.ordering_key is None:
            return True
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        holder = self._ordering_keys.get(key)
        return holder is None or (holder == trigger.id and key in self._awaited)

    def reserve(self, ordering_key: OrderingKey, task_id: str) -> None:
        """Reserve an ordering key for one task, which alone may acquire it until
        `release_reservation`."""
        self._ordering_keys[ordering_key] = task_id
        self._awaited.add(ordering_key)

    def release_reservation(self, ordering_key: OrderingKey) -> list[Hashable]:
        """Release the reservation of an ordering key, so that any task of it may acquire it; return
        the limit that has room again."""
        self._ordering_keys.pop(ordering_key, None)
        self._awaited.discard(ordering_key)
        return [ordering_key]

    def is_reserved(self, ordering_key: OrderingKey) -> bool:
        """Return whether the ordering key is reserved for a task without a slot."""
        return ordering_key in self._awaited

    def has_reservation(self, trigger: Trigger) -> bool:
        """Return whether the ordering key of the trigger is reserved for this task."""
        return (
            trigger.ordering_key is not None
            and self._ordering_keys.get(OrderingKey(trigger.queue, trigger.ordering_key))
            == trigger.id
        )

    def started(self, trigger: Trigger, now: float) -> None:
        """Note that the executor has a task with slots, for limits of the rate of starts."""
        for policy in self._chains[trigger.queue, trigger.name]:
            if isinstance(policy, NodeRateLimit):
                policy.started(trigger, now)

    def release(self, trigger: Trigger, now: float) -> list[Hashable]:
        """Release the slots of a run that has ended; return the limits that have room again. Call
        `release` or `cancel` exactly once for each acquire. The ordering key stays reserved,
        because the end must be in the store before the next task of the key may run."""
        return self._release("release", trigger, now)

    def cancel(self, trigger: Trigger, now: float) -> list[Hashable]:
        """Release the slots of a task that did not run; return the limits that have room again. The
        ordering key stays reserved."""
        return self._release("cancel", trigger, now)

    def _release(
        self, how: Literal["release", "cancel"], trigger: Trigger, now: float
    ) -> list[Hashable]:
        self._acquired -= 1
        chain = self._chains[trigger.queue, trigger.name]
        freed = self._release_all(chain, how, trigger, now) if chain else []
        if (limit := self._keys.release(trigger)) is not None:
            freed.append(limit)
        return freed

    @staticmethod
    def _release_all(
        chain: Chain, how: Literal["release", "cancel"], trigger: Trigger, now: float
    ) -> list[Hashable]:
        freed: list[Hashable] = []
        for policy in reversed(chain):
            try:
                limits = (
                    policy.release(trigger, now)
                    if how == "release"
                    else policy.cancel(trigger, now)
                )
                # A value that cannot be hashed raises here, not in the table.
                freed += dict.fromkeys(limits)
            except Exception:
                # Only this policy's own count is wrong now.
                log.exception(
                    "a concurrency policy failed to release a slot", extra={"task": trigger.name}
                )
        return freed


def _keep_permits(chain: Chain, trigger: Trigger, awaited: Pool | None, now: float) -> None:
    """Keep the acquired permits of a trigger, if it has to wait for a permit of another limit."""
    if awaited is None:
        return
    for policy in filter(is_on_node, chain):
        policy.keep(trigger, awaited, now)


def _checked(full: Full, now: float) -> Full:
    """Return a policy's result, fit for the table. Raises TypeError or ValueError."""
    if not isinstance(full, Full):
        raise TypeError(f"acquire() returned {full!r}: return None or a fairlead.Full")
    if full.limit is None:
        raise TypeError(
            "Full.limit is None: name the limit, so that those it stops can wait for it"
        )
    hash(full.limit)
    if full.retry_at is None:
        return full
    if not math.isfinite(full.retry_at):
        raise ValueError(f"Full.retry_at={full.retry_at!r}: use monotonic seconds, or None")
    # A time that has passed would make the node retry without a pause.
    return full if full.retry_at > now else Full(full.limit, now + SHORTEST_WAIT)
