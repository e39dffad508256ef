"""Booking: the right to run one task now, from every limit on its way, or from none."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from fairlead.core.limits import ConcurrencyPolicy, Full
from fairlead.model import Trigger

Chain = tuple[ConcurrencyPolicy, ...]


class PolicyFailed(Exception):
    """A policy raised while booking. Nothing is booked for that trigger."""

    def __init__(self, trigger: Trigger, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} in a concurrency policy: {error}")
        self.trigger = trigger
        self.error = error


class _OrderingKeys:
    """Triggers of one ordering key of a queue run one at a time."""

    def __init__(self) -> None:
        self._running: set[tuple[str, str]] = set()

    def column(self, trigger: Trigger) -> Hashable:
        return trigger.ordering_key

    def book(self, trigger: Trigger, now: float) -> Full | None:
        key = (trigger.queue, trigger.ordering_key or "")
        if key in self._running:
            return Full((self, key))
        self._running.add(key)
        return None

    def free(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        key = (trigger.queue, trigger.ordering_key or "")
        self._running.discard(key)
        return ((self, key),)

    unbook = free


class Booking:
    """The limits of one node. `slots` bounds all that runs here; queues and tasks add their own chains."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._booked = 0
        self._queues: dict[str, Chain] = {}
        self._tasks: dict[tuple[str, str], Chain] = {}
        self._chains: dict[tuple[str, str], Chain] = {}
        self._ordering = _OrderingKeys()

    @property
    def room(self) -> int:
        """Slots of the node that are free: with none, no booking can succeed."""
        return self._slots - self._booked

    def register_queue(self, queue: str, *policies: ConcurrencyPolicy | None) -> None:
        """Every task of the queue books these."""
        self._queues[queue] = tuple(policy for policy in policies if policy is not None)
        self._chains.clear()

    def register_task(self, queue: str, name: str, *policies: ConcurrencyPolicy | None) -> None:
        """Tasks of this name book these too."""
        self._tasks[queue, name] = tuple(policy for policy in policies if policy is not None)
        self._chains.clear()

    def column(self, trigger: Trigger) -> Hashable:
        """Triggers with equal columns are stopped by the same limits: they wait behind one another, and no others do."""
        chain = self._chain(trigger)
        if not chain and trigger.ordering_key is None:
            return (trigger.queue, trigger.name)
        try:
            parts = tuple(policy.column(trigger) for policy in chain)
        except Exception:
            # A broken policy is found out, and reported, when it books.
            parts = ()
        return (trigger.queue, trigger.name, trigger.ordering_key, *parts)

    def book(self, trigger: Trigger, now: float) -> Full | None:
        """Book every limit on the way, or none. The caller has looked at `room`. Raises PolicyFailed."""
        booked: list[ConcurrencyPolicy] = []
        for policy in self._chain(trigger):
            try:
                full = policy.book(trigger, now)
            except Exception as error:
                self._undo(booked, trigger, now)
                raise PolicyFailed(trigger, error) from error
            if full is not None:
                self._undo(booked, trigger, now)
                return full
            booked.append(policy)
        if trigger.ordering_key is not None and (full := self._ordering.book(trigger, now)) is not None:
            self._undo(booked, trigger, now)
            return full
        self._booked += 1
        return None

    def book_nothing(self) -> None:
        """Take a slot of the node alone: for a trigger that is grabbed only to record what its policy did."""
        self._booked += 1

    def free(self, trigger: Trigger, now: float) -> list[Hashable]:
        """The run has ended; answers the limits that have room again."""
        return self._give_back(trigger, now, "free")

    def unbook(self, trigger: Trigger, now: float) -> list[Hashable]:
        """The booking led to no run; answers the limits that have room again."""
        return self._give_back(trigger, now, "unbook")

    def _give_back(self, trigger: Trigger, now: float, how: str) -> list[Hashable]:
        self._booked -= 1
        freed: list[Hashable] = []
        if trigger.ordering_key is not None:
            freed.extend(self._ordering.free(trigger, now))
        for policy in self._chain(trigger):
            try:
                freed.extend(getattr(policy, how)(trigger, now))
            except Exception:  # noqa: S112 - a broken policy loses its own count, nobody else's
                continue
        return freed

    def _undo(self, booked: Sequence[ConcurrencyPolicy], trigger: Trigger, now: float) -> None:
        for policy in reversed(booked):
            policy.unbook(trigger, now)

    def _chain(self, trigger: Trigger) -> Chain:
        key = (trigger.queue, trigger.name)
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = self._tasks.get(key, ()) + self._queues.get(trigger.queue, ())
        return chain
