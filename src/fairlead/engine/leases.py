"""Leases on partitions and on the work of pollers: their names, and those of each queue, kept up
to date by what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from fairlead.engine.liveness import Expiry
from fairlead.model import PartitionKey

Value = TypeVar("Value")

_PARTITION = "partition/"
_POLLER = "poller/"


def lease_of(key: PartitionKey) -> str:
    """Return the name of the lease on a partition."""
    return f"{_PARTITION}{key.queue}/{key.partition}"


@lru_cache(20_000)
def partition_of(lease: str) -> PartitionKey | None:
    """Return the partition that the lease is on; None for a lease on something else."""
    if not lease.startswith(_PARTITION):
        return None
    queue, _, partition = lease.removeprefix(_PARTITION).rpartition("/")
    return PartitionKey(queue, int(partition))


def owners_of(leases: Mapping[str, str]) -> dict[PartitionKey, str]:
    """Return the node that holds the lease of each partition. `leases`: owners by lease."""
    return {key: owner for name, owner in leases.items() if (key := partition_of(name))}


def poller_lease(poller: str) -> str:
    """Return the name of the lease that elects the node of a poller."""
    return _POLLER + poller


class Elections:
    """Pollers that this node may run, and those for which it is elected, by their leases."""

    def __init__(self, pollers: Iterable[str], expiry: Expiry) -> None:
        """`expiry`: of the leases of this node."""
        self._pollers = {poller_lease(poller): poller for poller in pollers}
        self._expiry = expiry
        self._elected: set[str] = set()
        self.changed = asyncio.Event()
        """Set whenever the elected pollers change."""

    @property
    def leases(self) -> list[str]:
        """Leases of the pollers for which this node is elected."""
        return [name for name, poller in self._pollers.items() if poller in self._elected]

    def free(self, leases: Container[str]) -> list[str]:
        """Return the leases of pollers that are not among these."""
        return [name for name in self._pollers if name not in leases]

    def is_elected(self, poller: str) -> bool:
        """Return True while this node is elected to run the poller."""
        return poller in self._elected and self._expiry.is_ahead()

    def elect(self, held: Container[str]) -> None:
        """Elect this node for the pollers of these leases."""
        elected = {poller for name, poller in self._pollers.items() if name in held}
        if elected != self._elected:
            self._elected = elected
            self.changed.set()


class PartitionLeases(Generic[Value]):
    """Leases on partitions with a value each, such as the owner or the range id."""

    def __init__(self) -> None:
        self.keys: set[PartitionKey] = set()
        self._leases: Mapping[str, Value] = {}
        self._by_queue: dict[str, dict[int, Value]] = {}

    def of(self, queue: str) -> Mapping[int, Value]:
        """Return the values of a queue's leases, by partition."""
        return self._by_queue.get(queue, {})

    def replace(self, leases: Mapping[str, Value]) -> set[str]:
        """Replace the leases, of any kind, by these; return the queues whose leases changed."""
        before, self._leases = self._leases, leases
        if leases is before:
            return set()
        ended = [name for name in before if name not in leases]
        changed = [name for name, value in leases.items() if before.get(name) != value]
        queues = set()
        for name in (*ended, *changed):
            if (key := partition_of(name)) is None:
                continue
            queues.add(key.queue)
            if name in leases:
                self.keys.add(key)
                self._by_queue.setdefault(key.queue, {})[key.partition] = leases[name]
            else:
                self.keys.discard(key)
                del self._by_queue[key.queue][key.partition]
        return queues
