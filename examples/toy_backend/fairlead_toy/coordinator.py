"""Leases and the ledgers of cluster-wide limits, in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from fairlead.ports.notification import Notification


class _Lease(NamedTuple):
    owner: str
    expires: float
    """Seconds of the monotonic clock."""


class ToyCoordinator:
    """A coordinator in memory. See `fairlead.ports.coordinator.Coordinator`."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._leases: dict[str, _Lease] = {}
        self._range_ids: dict[str, int] = {}
        self._ledgers: dict[tuple[str, str], tuple[bytes, int]] = {}

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        taken = await self.owners()
        won = {name: self._range_ids.get(name, 0) + 1 for name in names if name not in taken}
        self._range_ids.update(won)
        self._leases.update(dict.fromkeys(won, _Lease(owner, time.monotonic() + ttl)))
        return won

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        mine = [name for name, holder in (await self.owners()).items() if holder == owner]
        self._leases.update(dict.fromkeys(mine, _Lease(owner, time.monotonic() + ttl)))
        return {name: self._range_ids[name] for name in mine}

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        mine = [n for n in names if n in self._leases and self._leases[n].owner == owner]
        for name in mine:
            del self._leases[name]
        return Notification(control=True) if mine else None

    async def owners(self, *, at_renewal: bool = False) -> dict[str, str]:
        now = time.monotonic()
        return {name: held.owner for name, held in self._leases.items() if held.expires > now}

    async def read_ledger(self, limit: str, shard: str) -> tuple[bytes, int]:
        return self._ledgers.get((limit, shard), (b"", 0))

    async def write_ledger(self, limit: str, shard: str, ledger: bytes, version: int) -> bool:
        is_first = self._ledgers.get((limit, shard), (b"", 0))[1] == version
        if is_first:
            self._ledgers[limit, shard] = (ledger, version + 1)
        return is_first

    def close(self) -> None:
        """Do nothing: other applications may use the same name."""
