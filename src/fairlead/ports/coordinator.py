"""The coordinator: leases with a growing range id. Whoever holds one alone may do what it names, until it expires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from fairlead.ports.wake import Wake


class Lease(msgspec.Struct, frozen=True):
    """A lease as everybody sees it."""

    name: str
    owner: str
    range_id: int
    expires_at: int
    """Microseconds, by the coordinator's own clock."""


class Coordinator(Protocol):
    """Leases on names such as `partition/payouts/2` and `poller/due`."""

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        """Take those of the names that are free or expired, for `ttl` seconds; answers the range id of each one won.
        Each change of hands raises the range id: a write fenced by an older one is refused."""

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        """Extend all unexpired leases of the owner by `ttl` seconds from now; answers what it still holds."""

    async def release(self, names: Sequence[str], owner: str) -> Wake | None:
        """Give up leases at once; those not held are ignored. Answers the wake to announce: others may take them."""

    async def leases(self) -> list[Lease]:
        """All leases that are held and not expired."""
