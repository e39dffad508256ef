"""Leases on partitions, by queue: kept up to date by what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from fairlead.engine.lease_names import partition_of
from fairlead.model import PartitionKey

Value = TypeVar("Value")


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
