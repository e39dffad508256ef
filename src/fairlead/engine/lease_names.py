"""Names of leases: one for each partition of a queue, one for each kind of poller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.model import PartitionKey

_PARTITION = "partition/"
_POLLER = "poller/"


def lease_of(key: PartitionKey) -> str:
    """Return the name of the lease on a partition."""
    return f"{_PARTITION}{key.queue}/{key.partition}"


def partitions_of(leases: Iterable[str]) -> frozenset[PartitionKey]:
    """Return the partitions that these leases are on."""
    found = set()
    for name in leases:
        if name.startswith(_PARTITION):
            queue, _, partition = name.removeprefix(_PARTITION).rpartition("/")
            found.add(PartitionKey(queue, int(partition)))
    return frozenset(found)


def owners_of(leases: Mapping[str, str]) -> dict[PartitionKey, str]:
    """Return the node that holds the lease of each partition. `leases`: owners by lease."""
    return {key: owner for name, owner in leases.items() for key in partitions_of([name])}


def poller_lease(poller: str) -> str:
    """Return the name of the lease that elects the node of a poller."""
    return _POLLER + poller


def pollers_of(leases: Iterable[str]) -> set[str]:
    """Return the pollers that these leases are on."""
    return {name.removeprefix(_POLLER) for name in leases if name.startswith(_POLLER)}
