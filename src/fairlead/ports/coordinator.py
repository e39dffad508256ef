"""The coordinator: leases with a growing range id, and the books of cluster-wide limits.

Whoever holds a lease alone may do what it names, until it expires. What a book says is the matter
of core/permits.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from fairlead.ports.notification import Notification


class Lease(msgspec.Struct, frozen=True):
    """A lease as everybody sees it."""

    name: str
    owner: str
    range_id: int
    expires_at: int
    """Microseconds, by the coordinator's own clock."""


class Coordinator(Protocol):
    """Leases on names such as `partition/payouts/2` and `poller/due`. What needs an answer raises
    StoreUnavailable when there is none."""

    @property
    def location(self) -> str:
        """Where it is, for people; no secrets."""

    def check_limits(self, names: Sequence[str]) -> None:
        """Raise NotSupported when there are names of cluster-wide limits and no book can be kept
        for them."""

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        """Take those of the names that are free or expired, for `ttl` seconds; answers the range id
        of each one won. Each change of hands raises the range id: a write fenced by an older one is
        refused."""

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        """Extend all unexpired leases of the owner by `ttl` seconds from now; answers what it still
        holds."""

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        """Give up leases at once; those not held are ignored. Answers the wake to announce: others
        may take them."""

    async def leases(self) -> list[Lease]:
        """All leases that are held and not expired."""

    async def read_ledger(self, limit: str) -> tuple[bytes, int]:
        """Who holds what of a cluster-wide limit, and the version of that: as last written by
        anybody. Before the first write: (b"", 0)."""

    async def write_ledger(self, limit: str, ledger: bytes, version: int) -> bool:
        """Replace the book if it still has the version that was read; once this is answered it is
        not lost. False: somebody was quicker. Raises StoreUnavailable: then nobody knows, and it
        may even be written later, unless the version has moved on by then."""

    def close(self) -> None:
        """Let go of every connection; leases of owners that did not release them run out."""
