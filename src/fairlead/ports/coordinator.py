"""The coordinator: leases with a growing range id, and the permit ledgers of cluster-wide limits.

Only the holder of a lease may do what the lease names, until it expires. The coordinator
does not interpret the ledgers; core/limits/sharded_permits.py does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fairlead.ports.notification import Notification


class Coordinator(Protocol):
    """Leases on names such as `partition/payouts/2` and `poller/due`. Calls that need the server
    raise StoreUnavailable while it is unavailable."""

    @property
    def location(self) -> str:
        """Name of the coordinator for people, without secrets."""

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        """Acquire those of the leases that are free or expired, for `ttl` seconds; return the range
        id of each one won. Each change of owner raises the range id, so that stores refuse writes
        fenced by an older one. May extend the owner's other leases too. Raises ValueError for an
        empty owner."""

    async def renew(self, owner: str, ttl: float) -> Mapping[str, int]:
        """Extend all unexpired leases of the owner by `ttl` seconds from now; return the leases it
        still holds, with their range ids."""

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        """Release leases at once and ignore those not held. Return the notification to announce, so
        that other nodes acquire them."""

    async def owners(self, *, at_renewal: bool = False) -> Mapping[str, str]:
        """Return the owner of each lease that is held and not expired, by the lease's name. With
        `at_renewal`, those at the last `renew` may be returned without another request."""

    async def read_ledger(self, limit: str, shard: str) -> tuple[bytes, int]:
        """Return one shard of the ledger of a cluster-wide limit as last written, and its version.
        Before the first write: (b"", 0). A shard has less than 300 KB; the name of the first one
        is "", those of others are digits."""

    async def write_ledger(self, limit: str, shard: str, ledger: bytes, version: int) -> bool:
        """Replace the shard if it still has the version that was read; durable on return. Return
        False if another node wrote first. The first shard is written before all others. Raises
        StoreUnavailable if the write may or may not have landed; it may even land later, unless the
        version has moved on by then."""

    def close(self) -> None:
        """Close every connection; leases that their owners did not release expire."""
