"""Deaths: watch the locks of other nodes, and free at once what a dead node held.

A node that hangs keeps its lock; its heartbeats and leases run out instead
(`fairlead.engine.membership`, `fairlead.engine.pollers`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.errors import StoreUnavailable

log = logging.getLogger("fairlead.deaths")

CHECK_EVERY = 0.25
"""Seconds between two checks of the locks."""

PAUSE_AFTER_OUTAGE = 2.5
"""Seconds without a check after the store was unavailable, and after the start where the locks need
the store."""

WATCHED = 3
"""Number of nodes that each node watches: the next ones in the order of their names. A death is
noticed soon, unless all nodes that watch the dead node die at the same moment."""

PATIENCE = 1.0
"""Seconds for which a node waits for each living node between it and a dead one. That node sees the
death too, and two nodes that free the same tasks at once would disturb each other."""


def watched_by(node: str, living: Collection[str]) -> list[str]:
    """Return the nodes that `node` watches: the next ones in the ring of all living nodes."""
    others = sorted(set(living) - {node})
    after = [each for each in others if each > node]
    return [*after, *others[: len(others) - len(after)]][:WATCHED]


@dataclass
class _Suspect:
    """A node whose lock is free."""

    since: float
    """Monotonic seconds."""
    heartbeat_at: int
    """Last heartbeat at that moment, in microseconds since the epoch."""
    patience: float
    """Seconds to wait for nodes nearer to it. A node that starts between the two later adds
    nothing, because it has never seen the lock held."""
    is_living: bool = False
    """Whether a heartbeat has come since: the node lost its lock but still runs."""


class Deaths(SimplePart):
    """Find nodes whose process ended without leaving. Other nodes then get their leases and resume
    their tasks."""

    def __init__(
        self,
        context: NodeContext,
        on_dead: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        """`on_dead`: frees what these nodes held; may raise StoreUnavailable, and is then called
        again."""
        self._context = context
        self._on_dead = on_dead
        self._presence = context.ports.presence
        self._watched: list[str] = []
        self._suspects: dict[str, _Suspect] = {}

    async def hold_lock(self, on_lost: Callable[[], None]) -> None:
        """Hold this node's lock, before the node registers. `on_lost`: see `Presence.hold`. Raises
        StoreUnavailable."""
        if self._presence is not None:
            await self._presence.hold(self._context.name, on_lost)

    async def release_lock(self) -> None:
        """Release this node's lock, after the node has left the store."""
        if self._presence is not None:
            await self._presence.close()

    def on_nodes(self, present: Collection[str]) -> None:
        """Watch the next nodes among those that live and are not about to restart."""
        self._watched = watched_by(self._context.name, present)

    async def run(self) -> None:
        """Watch until cancelled."""
        if self._presence is None:
            return
        if self._presence.confirm_seconds:  # an outage may just have freed the locks of all nodes
            await self._context.clock.sleep(PAUSE_AFTER_OUTAGE)
        while True:
            await self._context.clock.sleep(CHECK_EVERY)
            try:
                await self.check()
            except StoreUnavailable:
                self.on_outage()  # the membership logs the outage
                await self._context.clock.sleep(PAUSE_AFTER_OUTAGE)

    def on_outage(self) -> None:
        """Begin every suspicion again: the outage may have freed the locks of living nodes."""
        self._suspects.clear()

    async def check(self) -> None:
        """Check the locks once. Raises StoreUnavailable."""
        assert self._presence is not None
        released = await self._presence.released(self._watched) if self._watched else set()
        self._suspects = {node: self._suspects[node] for node in self._suspects if node in released}
        if all(node in self._suspects and self._suspects[node].is_living for node in released):
            return
        now, confirm = self._context.clock.monotonic(), self._presence.confirm_seconds
        heartbeats = await self._heartbeats()
        dead = []
        for node in (each for each in self._watched if each in released):
            if (heartbeat_at := heartbeats.get(node)) is None:
                continue  # the node has left
            patience = PATIENCE * self._watched.index(node)
            suspect = self._suspects.setdefault(node, _Suspect(now, heartbeat_at, patience))
            suspect.is_living |= heartbeat_at != suspect.heartbeat_at
            suspect.patience = min(suspect.patience, patience)
            if not suspect.is_living and now - suspect.since >= confirm + suspect.patience:
                dead.append(node)
        if dead:
            log.warning("nodes died", extra={"nodes": dead})
            await self._on_dead(dead)

    async def _heartbeats(self) -> dict[str, int]:
        store = self._context.cluster
        return {each.node: each.heartbeat_at for each in await store.database.read(store.nodes())}
