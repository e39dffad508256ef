"""The coordinator of tasks on Redis alone: every node gets every lease, since doing the work of a
lease twice is harmless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from fairlead.errors import NotSupported
from fairlead.ports.notification import Notification

NEEDS_COORDINATOR = (
    "nodes on Redis alone do not know of each other; give the App"
    " coordinator='zookeeper://host:2181', or use Limit, which each node applies alone"
)


class NoCoordinator:
    """A coordinator for a store whose own operations are safe from any number of nodes. See
    `fairlead.ports.coordinator.Coordinator`."""

    location = "no coordinator: every worker reads every queue"

    def __init__(self) -> None:
        self._held: dict[str, set[str]] = {}

    def check_limits(self, names: Sequence[str]) -> None:
        for name in names:
            self._refuse(name)

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        self._held.setdefault(owner, set()).update(names)
        return dict.fromkeys(names, 1)

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        return dict.fromkeys(self._held.get(owner, ()), 1)

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        self._held.get(owner, set()).difference_update(names)
        return None

    async def owners(self) -> dict[str, str]:
        return {}

    async def read_ledger(self, limit: str, shard: str) -> tuple[bytes, int]:
        self._refuse(limit)

    async def write_ledger(self, limit: str, shard: str, ledger: bytes, version: int) -> bool:
        self._refuse(limit)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    @staticmethod
    def _refuse(limit: str) -> NoReturn:
        raise NotSupported(f"cluster-wide limit {limit}: {NEEDS_COORDINATOR}")
