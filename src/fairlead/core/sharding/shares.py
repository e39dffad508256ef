"""Shares of partitions: which partitions of each queue a node keeps, releases and acquires.

Each queue is divided evenly among the nodes that serve it, so that nodes with different queues
leave no partition without an owner. Nodes do not talk to each other: each one computes the same
shares from the same members. The order of the nodes differs by queue, by rendezvous hashing (Thaler
and Ravishankar 1998).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from fairlead.model import PartitionKey

HOLD_SECONDS = 60.0
"""Seconds for which a node keeps the partitions of a queue beyond its share after it took one that
stayed free; doubled each further time until the members change."""


@dataclass(frozen=True)
class Members:
    """Living nodes, by their identities."""

    by_queue: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Identities of the nodes that serve each queue."""
    restarting: frozenset[str] = frozenset()
    """Identities that stopped and will be back: their partitions wait for them."""

    def differing(self, other: Members) -> set[str]:
        """Return the queues that the two differ in."""
        mine, theirs = self.by_queue, other.by_queue
        queues = mine.keys() | theirs.keys()
        if self.restarting != other.restarting:
            return queues
        return {queue for queue in queues if mine.get(queue) != theirs.get(queue)}


@dataclass
class _Hold:
    """A time for which a node keeps partitions beyond its share that no other node took."""

    members: frozenset[str]
    until: float
    """Monotonic seconds."""
    seconds: float


class PartitionShares:
    """The shares of one node. All instants are monotonic seconds of the caller's clock."""

    def __init__(self, identity: str, patience: float) -> None:
        """`patience`: seconds after which a free partition is acquired whatever the share."""
        self._identity = identity
        self._patience = patience
        self._members = Members()
        self._ranks: dict[tuple[str, frozenset[str]], tuple[str, ...]] = {}
        self._free_since: dict[str, dict[int, float]] = {}
        """Since when a partition is free that is not due to this node, by queue and partition."""
        self._holds: dict[str, _Hold] = {}

    @property
    def members(self) -> Members:
        """The members as last set."""
        return self._members

    def may_change(self, queue: str, now: float) -> bool:
        """Return whether time alone may change the share of a queue: a partition is free, or kept
        beyond the share."""
        hold = self._holds.get(queue)
        return queue in self._free_since or (hold is not None and now < hold.until)

    def set_members(self, members: Members) -> bool:
        """Set the living nodes; return whether they changed."""
        is_changed = members != self._members
        if is_changed:
            self._members = members
            self._ranks.clear()
        return is_changed

    def due(self, queue: str, partitions: int, identity: str | None = None) -> int:
        """Return how many of a queue's partitions are due to a node (this one by default).

        The nodes that get one more than others differ by queue, so that many queues of one
        partition are spread over all nodes.
        """
        ranks = self._ranked(queue)
        base, rest = divmod(partitions, len(ranks))
        return base + (ranks.index(identity or self._identity) < rest)

    def beyond(
        self, queue: str, count: int, held: Set[int], owners: Mapping[int, str], now: float
    ) -> list[PartitionKey]:
        """Return held partitions to release: those that a queue of `count` partitions does not
        have, and of those beyond this node's share, as many as other nodes lack.

        `count`: 0 for a queue that this node does not serve. `owners`: identities by partition.
        """
        released = [partition for partition in held if partition >= count]
        kept = [partition for partition in held if partition < count]
        excess = len(kept) - self.due(queue, count) if kept else 0
        if excess > 0 and not self._is_held(queue, now):
            owned = Counter(owners.values())
            free = count - len(kept) - (owned.total() - owned[self._identity])
            lacking = sum(
                max(0, self.due(queue, count, member) - owned[member])
                for member in self._ranked(queue)
                if member != self._identity
            )
            kept.sort()
            released += kept[len(kept) - max(0, min(excess, lacking - max(0, free))) :]
        return [PartitionKey(queue, partition) for partition in sorted(released)]

    def wanted(
        self, queue: str, count: int, held: Set[int], owners: Mapping[int, str], now: float
    ) -> list[PartitionKey]:
        """Return free partitions to acquire: up to this node's share, and those that stayed free
        for `patience` seconds, unless a restarting node may come back for them."""
        free_since = self._free_since.pop(queue, {})
        free = [n for n in range(count) if n not in owners and n not in held]
        if not free:
            return []
        # Each node begins at another position, so that two seldom try the same lease.
        start = _hash(queue, self._identity) % len(free) if len(free) > 1 else 0
        free = free[start:] + free[:start]
        room = max(0, self.due(queue, count) - len(held))
        wanted = free[:room]
        if room < len(free) and self._members.restarting.isdisjoint(self._ranked(queue)):
            waiting = {partition: free_since.get(partition, now) for partition in free[room:]}
            self._free_since[queue] = waiting
            for partition, since in waiting.items():
                if now - since >= self._patience:
                    wanted.append(partition)
                    self._hold(queue, now)
        return [PartitionKey(queue, partition) for partition in wanted]

    def _ranked(self, queue: str) -> tuple[str, ...]:
        """Return the nodes that serve a queue, this one included, in an order that differs by
        queue."""
        members = self._members.by_queue.get(queue, frozenset())
        if members <= {self._identity}:
            return (self._identity,)
        key = (queue, members)
        if (ranks := self._ranks.get(key)) is None:
            ranks = self._ranks[key] = tuple(
                sorted(members | {self._identity}, key=lambda each: (_hash(queue, each), each))
            )
        return ranks

    def _hold(self, queue: str, now: float) -> None:
        """For a while, keep the partitions that this node has of a queue, because no other node
        takes them."""
        members = self._members.by_queue.get(queue, frozenset())
        hold = self._holds.get(queue)
        if hold is None or hold.members != members:
            self._holds[queue] = _Hold(members, now + HOLD_SECONDS, HOLD_SECONDS)
        elif now >= hold.until:
            hold.seconds *= 2
            hold.until = now + hold.seconds

    def _is_held(self, queue: str, now: float) -> bool:
        hold = self._holds.get(queue)
        if hold is None:
            return False
        if hold.members != self._members.by_queue.get(queue, frozenset()):
            del self._holds[queue]
            return False
        return now < hold.until


def _hash(queue: str, identity: str) -> int:
    name = f"{queue}\0{identity}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
