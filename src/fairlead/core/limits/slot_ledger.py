"""SlotLedger: the right to run one task now, from every limit on its way, or from none."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping
from typing import Literal, NamedTuple

from fairlead.core.limits.key_limits import KeyLimit, KeyLimits
from fairlead.core.limits.limits import ConcurrencyPolicy, Full
from fairlead.model import Trigger

log = logging.getLogger("fairlead.booking")

SHORTEST_WAIT = 0.001
"""Seconds until a policy is asked again that is full and says "now"."""

Chain = tuple[ConcurrencyPolicy, ...]


class OrderingKey(NamedTuple):
    """The limit that lets one trigger of an ordering key run at a time."""

    queue: str
    ordering_key: str


class PolicyFailed(Exception):
    """A policy raised, or answered nonsense, while booking. Nothing is booked for that trigger."""

    def __init__(self, policy: object, trigger: Trigger, error: Exception) -> None:
        super().__init__(
            f"{type(error).__name__} in the concurrency policy {type(policy).__name__}: {error}"
        )
        self.policy = policy
        self.trigger = trigger
        self.error = error


class _Chains(dict[tuple[str, str], Chain]):
    """What each (queue, name) books, put together when first asked for: nothing else is done for
    every trigger."""

    def __init__(self) -> None:
        super().__init__()
        self.of_queue: dict[str, Chain] = {}
        self.of_task: dict[tuple[str, str], Chain] = {}

    def __missing__(self, key: tuple[str, str]) -> Chain:
        chain = self[key] = self.of_task.get(key, ()) + self.of_queue.get(key[0], ())
        return chain


class SlotLedger:
    """The limits of one node. `slots` bounds all that runs here; queues and tasks add their own
    chains; triggers of one ordering key of a queue run one at a time; of a fairness key at most as
    many as `set_limits` allows. The limits of the chains count beside those: the tighter one
    stops."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._acquired = 0
        self._chains = _Chains()
        self._keys = KeyLimits()
        self._ordering_keys: dict[OrderingKey, str] = {}
        """By key, the id of the task whose turn it is."""
        self._awaited: set[OrderingKey] = set()
        """Those whose turn is kept for a task that is not booked now: it failed and waits for its
        next try, or runs elsewhere."""

    @property
    def acquired(self) -> int:
        """Slots of the node that are taken."""
        return self._acquired

    @property
    def room(self) -> int:
        """Slots of the node that are free: with none, no booking can succeed."""
        return self._slots - self._acquired

    def register_queue(self, queue: str, *policies: ConcurrencyPolicy | None) -> None:
        """Every task of the queue books these. Before the first booking."""
        self._chains.of_queue[queue] = tuple(policy for policy in policies if policy is not None)
        self._chains.clear()

    def register_task(self, queue: str, name: str, *policies: ConcurrencyPolicy | None) -> None:
        """Tasks of this name book these too, ahead of their queue's. Before the first booking."""
        self._chains.of_task[queue, name] = tuple(
            policy for policy in policies if policy is not None
        )
        self._chains.clear()

    def limits(self, queue: str) -> Mapping[str, int]:
        """What `set_limits` has set: by fairness key, how many of its tasks run here at once."""
        return self._keys.limits(queue)

    def set_limits(self, queue: str, limits: Mapping[str, int]) -> list[KeyLimit]:
        """At any time; answers those that have room. When other keys than before have a limit,
        triggers have other columns: it is the table that is to be told."""
        return self._keys.set(queue, limits)

    def uses(self, trigger: Trigger, policy: ConcurrencyPolicy) -> bool:
        """Whether the trigger books this policy."""
        return policy in self._chains[trigger.queue, trigger.name]

    def column(self, trigger: Trigger) -> Hashable:
        """Triggers with equal columns are stopped by the same limits: they wait behind one another,
        no others do."""
        key = (trigger.queue, trigger.name)
        chain = self._chains[key]
        limit = self._keys.of(trigger) if self._keys.has_any else None
        if not chain and limit is None and trigger.ordering_key is None:
            return key
        try:
            parts = tuple([policy.column(trigger) for policy in chain])
            hash(parts)
        except Exception as error:
            # It is reported when it books, if it still fails there; until then the whole name waits
            # in one column.
            log.debug(
                "a policy failed to name a column",
                extra={"task": trigger.name, "error": repr(error)},
            )
            parts = ()
        return (
            (*key, trigger.ordering_key, *parts)
            if limit is None
            else (*key, trigger.ordering_key, limit, *parts)
        )

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        """Book every limit on the way, or none. The caller has looked at `room`. Raises
        PolicyFailed."""
        chain = self._chains[trigger.queue, trigger.name]
        if not chain and trigger.ordering_key is None:
            if self._keys.has_any and (limit := self._keys.full(trigger)) is not None:
                return Full(limit)
            self._keys.acquire(trigger)
            self._acquired += 1
            return None
        # The ordering key comes first: of all limits it is the narrowest, so a parked trigger waits
        # for what it needs.
        ordering_key = (
            OrderingKey(trigger.queue, trigger.ordering_key)
            if trigger.ordering_key is not None
            else None
        )
        whose = None if ordering_key is None else self._ordering_keys.get(ordering_key)
        if whose is not None and (whose != trigger.id or ordering_key not in self._awaited):
            return Full(ordering_key)
        if self._keys.has_any and (limit := self._keys.full(trigger)) is not None:
            return Full(limit)
        for place, policy in enumerate(chain):
            try:
                full = policy.acquire(trigger, now)
                if full is not None:
                    full = _checked(full, now)
            except Exception as error:
                self._give_back(chain[:place], "cancel", trigger, now)
                raise PolicyFailed(policy, trigger, error) from error
            if full is not None:
                self._give_back(chain[:place], "cancel", trigger, now)
                return full
        if ordering_key is not None:
            self._ordering_keys[ordering_key] = trigger.id
            self._awaited.discard(ordering_key)
        self._keys.acquire(trigger)
        self._acquired += 1
        return None

    def reserve(self, ordering_key: OrderingKey, task_id: str) -> None:
        """Until `give_turn`, no other task of the key can be booked."""
        self._ordering_keys[ordering_key] = task_id
        self._awaited.add(ordering_key)

    def release_reservation(self, ordering_key: OrderingKey) -> list[Hashable]:
        """It is nobody's turn: whoever is first may be booked. Answers the limit that has room
        again."""
        self._ordering_keys.pop(ordering_key, None)
        self._awaited.discard(ordering_key)
        return [ordering_key]

    def has_reservation(self, trigger: Trigger) -> bool:
        """Its ordering key waits for this very task."""
        return (
            trigger.ordering_key is not None
            and self._ordering_keys.get(OrderingKey(trigger.queue, trigger.ordering_key))
            == trigger.id
        )

    def release(self, trigger: Trigger, now: float) -> list[Hashable]:
        """The run has ended; answers the limits that have room again. Exactly once for each
        booking, or `unbook`. Its ordering key stays booked: its end must be in the store before the
        next one's turn comes."""
        return self._release("release", trigger, now)

    def cancel(self, trigger: Trigger, now: float) -> list[Hashable]:
        """The booking led to no run; answers the limits that have room again. Its ordering key
        stays booked."""
        return self._release("cancel", trigger, now)

    def _release(
        self, how: Literal["release", "cancel"], trigger: Trigger, now: float
    ) -> list[Hashable]:
        self._acquired -= 1
        chain = self._chains[trigger.queue, trigger.name]
        freed = self._give_back(chain, how, trigger, now) if chain else []
        if (limit := self._keys.release(trigger)) is not None:
            freed.append(limit)
        return freed

    @staticmethod
    def _give_back(
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
                freed += dict.fromkeys(
                    limits
                )  # finds out here, not in the table, what cannot be hashed
            except Exception:
                # It has lost its own count, nobody else's.
                log.exception(
                    "a concurrency policy failed to give back", extra={"task": trigger.name}
                )
        return freed


def _checked(full: Full, now: float) -> Full:
    """A policy's answer, fit for the table. Raises TypeError or ValueError with what is wrong."""
    if not isinstance(full, Full):
        raise TypeError(f"book() answered {full!r}: answer None or a fairlead.Full")
    if full.limit is None:
        raise TypeError(
            "Full.limit is None: name the limit, so that those it stops can wait for it"
        )
    hash(full.limit)
    if full.retry_at is None:
        return full
    if not math.isfinite(full.retry_at):
        raise ValueError(f"Full.retry_at={full.retry_at!r}: use monotonic seconds, or None")
    # A time that has passed would have the node try again without a pause.
    return full if full.retry_at > now else Full(full.limit, now + SHORTEST_WAIT)
