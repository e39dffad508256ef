"""Leases and the ledgers of cluster-wide limits, in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fairlead.clock import MICROS
from fairlead.ports.coordinator import Lease
from fairlead.ports.notification import Notification


class ToyCoordinator:
    """A coordinator in memory. See `fairlead.ports.coordinator.Coordinator`."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._leases: dict[str, Lease] = {}
        self._range_ids: dict[str, int] = {}
        self._ledgers: dict[str, tuple[bytes, int]] = {}

    def check_limits(self, names: Sequence[str]) -> None:
        """Accept any limit."""

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        taken = {lease.name for lease in await self.leases()}
        won = {name: self._range_ids.get(name, 0) + 1 for name in names if name not in taken}
        self._range_ids.update(won)
        for name, range_id in won.items():
            self._leases[name] = Lease(name, owner, range_id, _until(ttl))
        return won

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        mine = [lease for lease in await self.leases() if lease.owner == owner]
        for lease in mine:
            self._leases[lease.name] = Lease(lease.name, owner, lease.range_id, _until(ttl))
        return {lease.name: lease.range_id for lease in mine}

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        mine = [n for n in names if n in self._leases and self._leases[n].owner == owner]
        for name in mine:
            del self._leases[name]
        return Notification(control=True) if mine else None

    async def leases(self) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.expires_at > _until(0)]

    async def read_ledger(self, limit: str) -> tuple[bytes, int]:
        return self._ledgers.get(limit, (b"", 0))

    async def write_ledger(self, limit: str, ledger: bytes, version: int) -> bool:
        is_first = self._ledgers.get(limit, (b"", 0))[1] == version
        if is_first:
            self._ledgers[limit] = (ledger, version + 1)
        return is_first

    def close(self) -> None:
        """Do nothing: other applications may use the same name."""


def _until(seconds: float) -> int:
    return round((time.monotonic() + seconds) * MICROS)
