"""The presence of nodes: locks that end with their process, so that other nodes see its death at
once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol


class Presence(Protocol):
    """One lock for each node, held until the node leaves or its process ends.

    A node that hangs, or whose network is cut, keeps its lock. Such a node counts as dead after a
    long silence, and loses its partitions when its leases expire.
    """

    @property
    def confirm_seconds(self) -> float:
        """Seconds for which a lock must stay free before its node counts as dead; 0 where only the
        end of the process frees it."""

    async def hold(self, node: str, on_lost: Callable[[], None]) -> None:
        """Hold the lock of a node from now on. After the lock was lost although the process lives
        (its connection was closed), `on_lost` runs in the event loop and the lock is acquired
        again. Raises StoreUnavailable."""

    async def released(self, nodes: Collection[str]) -> set[str]:
        """Return which of these nodes have held their lock and do not hold it now. A node whose
        lock was never seen is not among them. Raises StoreUnavailable."""

    async def close(self) -> None:
        """Release all locks of this process."""
