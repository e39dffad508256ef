"""Names of leases: one for each partition of a queue, one for each kind of poller."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from fairlead.model import PartitionKey

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
