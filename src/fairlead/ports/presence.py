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

    @property
    def check_seconds(self) -> float:
        """Seconds between two checks of locks that are held."""

    async def hold(self, node: str, on_changed: Callable[[], None]) -> None:
        """Hold the lock of a node from now on. `on_changed` runs in the event loop when the lock
        is acquired, and when it is lost although the process lives (its connection was closed); it
        is then acquired again. Where a lock can be lost, the heartbeats of a registered node record
        whether it holds its lock. Raises StoreUnavailable."""

    async def released(self, nodes: Collection[str]) -> set[str]:
        """Return which of these nodes have held their lock, at their last heartbeat where a lock
        can be lost, and do not hold it now: also those that died before this process started.
        Raises StoreUnavailable."""

    async def close(self) -> None:
        """Release all locks of this process."""
