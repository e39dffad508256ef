"""Shares of partitions: which partitions of each queue a node keeps, releases and acquires.

Each queue is divided evenly among the nodes that serve it, so that nodes with different queues
leave no partition without an owner. Nodes do not talk to each other: each one computes the same
shares from the same members. The order of the nodes differs by queue, by rendezvous hashing (Thaler
and Ravishankar 1998).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
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
        self._free_since: dict[PartitionKey, float] = {}
        self._holds: dict[str, _Hold] = {}

    @property
    def members(self) -> Members:
        """The members as last set."""
        return self._members

    @property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing: no partition is free, and none is kept beyond the
        share."""
        return not self._free_since and not self._holds

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
        self,
        partitions: Mapping[str, int],
        held: Collection[PartitionKey],
        owners: Mapping[PartitionKey, str],
        now: float,
    ) -> list[PartitionKey]:
        """Return held partitions to release: all of queues that this node does not serve, and of
        those beyond its share, as many as other nodes lack.

        `partitions`: number of partitions by served queue. `owners`: identities by partition.
        """
        released: list[PartitionKey] = []
        mine = _by_queue(held)
        others: dict[str, Counter[str]] = {}
        for queue, keys in mine.items():
            count = partitions.get(queue, 0)
            kept = [key for key in keys if key.partition < count]
            released += [key for key in keys if key.partition >= count]
            excess = len(kept) - self.due(queue, count) if kept else 0
            if excess > 0 and not self._is_held(queue, now):
                if not others:
                    others = _owners_by_queue(owners)
                owned = others.get(queue, Counter())
                free = count - len(kept) - (owned.total() - owned[self._identity])
                lacking = sum(
                    max(0, self.due(queue, count, member) - owned[member])
                    for member in self._ranked(queue)
                    if member != self._identity
                )
                released += kept[len(kept) - max(0, min(excess, lacking - max(0, free))) :]
        return released

    def wanted(
        self,
        partitions: Mapping[str, int],
        held: Set[PartitionKey],
        owners: Mapping[PartitionKey, str],
        now: float,
    ) -> list[PartitionKey]:
        """Return free partitions to acquire: up to this node's share, and those that stayed free
        for `patience` seconds, unless a restarting node may come back for them."""
        mine = Counter(key.queue for key in held)
        taken = owners.keys() | held
        counts = Counter(key.queue for key in taken if key.partition < partitions.get(key.queue, 0))
        wanted: list[PartitionKey] = []
        free_since: dict[PartitionKey, float] = {}
        for queue, count in partitions.items():
            if counts[queue] >= count:
                continue
            keys = (PartitionKey(queue, partition) for partition in range(count))
            free = [key for key in keys if key not in taken]
            # Each node begins at another position, so that two seldom try the same lease.
            start = _hash(queue, self._identity) % len(free)
            free = free[start:] + free[:start]
            room = max(0, self.due(queue, count) - mine[queue])
            wanted += free[:room]
            if not self._members.restarting.isdisjoint(self._ranked(queue)):
                continue
            for key in free[room:]:
                since = free_since[key] = self._free_since.get(key, now)
                if now - since >= self._patience:
                    wanted.append(key)
                    self._hold(queue, now)
        self._free_since = free_since
        return wanted

    def _ranked(self, queue: str) -> tuple[str, ...]:
        """Return the nodes that serve a queue, this one included, in an order that differs by
        queue."""
        members = self._members.by_queue.get(queue, frozenset())
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


def _by_queue(keys: Iterable[PartitionKey]) -> dict[str, list[PartitionKey]]:
    found: dict[str, list[PartitionKey]] = {}
    for key in sorted(keys):
        found.setdefault(key.queue, []).append(key)
    return found


def _owners_by_queue(owners: Mapping[PartitionKey, str]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for key, owner in owners.items():
        found.setdefault(key.queue, Counter())[owner] += 1
    return found


def _hash(queue: str, identity: str) -> int:
    name = f"{queue}\0{identity}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
