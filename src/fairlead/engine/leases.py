"""Leases on partitions and on the work of pollers: their names, and those of each queue, kept up
to date by what changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Generic, TypeVar

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
