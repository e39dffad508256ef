"""Held ordering keys: the task that each reserved key waits for, and when to look at it again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import NamedTuple

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.model import State

SOON_SECONDS = 1.0
"""Seconds between two checks of a head that runs on another node, whose end nobody may announce."""

HEAL_SECONDS = 15.0
"""Seconds between two checks of any other head. A notification announces its change; the check
makes up for a lost one."""


class Head(NamedTuple):
    """The first task of a key, as the store returned it last."""

    id: str
    version: int
    """Version of the task; 0 if the key must be read again in any case."""
    order_at: int
    state: State

    @property
    def holds(self) -> bool:
        """Whether the task keeps its key from running anything on this node."""
        return self.state != State.SUBMITTED


class HeldKeys:
    """Reserved keys with their heads, each in one of two queues by the time of its next check.
    Every operation on one key takes constant time. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heads: dict[OrderingKey, Head | None] = {}
        """Head by key; None until the key has been read."""
        self._keys: dict[str, OrderingKey] = {}
        """Key by the id of its head."""
        self._soon: dict[OrderingKey, float] = {}
        """Time of the next check of heads that run on other nodes, ascending."""
        self._later: dict[OrderingKey, float] = {}
        """Time of the next check of the other heads, ascending."""

    def __contains__(self, key: OrderingKey) -> bool:
        return key in self._heads

    def __len__(self) -> int:
        return len(self._heads)

    def head(self, key: OrderingKey) -> Head | None:
        """Return the head of a key; None if it is not known."""
        return self._heads.get(key)

    def key_of(self, task_id: str) -> OrderingKey | None:
        """Return the key that waits for this task."""
        return self._keys.get(task_id)

    def add(self, key: OrderingKey) -> None:
        """Add a key whose head is to be read. A known head stays known until then."""
        self._heads.setdefault(key, None)

    def set_head(self, key: OrderingKey, head: Head, now: float) -> None:
        """Note the head of a key, and check it from now on."""
        self.drop(key)
        self._heads[key] = head
        self._keys[head.id] = key
        self.check_later(key, now)

    def check_later(self, key: OrderingKey, now: float) -> None:
        """Check the head of a key again after its pause."""
        self._soon.pop(key, None)
        self._later.pop(key, None)
        head = self._heads[key]
        if head is not None:
            is_soon = head.state == State.PROCESSING
            queue = self._soon if is_soon else self._later
            queue[key] = now + (SOON_SECONDS if is_soon else HEAL_SECONDS)

    def check_all(self, now: float) -> None:
        """Check every head now."""
        for queue in (self._soon, self._later):
            queue.update(dict.fromkeys(queue, now))

    def due(self, now: float, most: int) -> list[tuple[OrderingKey, Head]]:
        """Return at most `most` keys to check now, with their heads."""
        keys = chain(*(_due(queue, now) for queue in (self._soon, self._later)))
        return [(key, head) for key in islice(keys, most) if (head := self._heads[key]) is not None]

    def next_check(self) -> float | None:
        """Return the time of the next check, or None if there is none."""
        firsts = [next(iter(queue.values())) for queue in (self._soon, self._later) if queue]
        return min(firsts, default=None)

    def drop(self, key: OrderingKey) -> None:
        """Drop a key, if it is here."""
        head = self._heads.pop(key, None)
        self._soon.pop(key, None)
        self._later.pop(key, None)
        if head is not None and self._keys.get(head.id) == key:
            del self._keys[head.id]


def _due(queue: dict[OrderingKey, float], now: float) -> Iterator[OrderingKey]:
    return (key for key, _ in takewhile(lambda item: item[1] <= now, queue.items()))
