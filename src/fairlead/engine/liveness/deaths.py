"""Deaths: watch the locks of other nodes, and free at once what a dead node held.

A node that hangs keeps its lock; its heartbeats and leases run out instead
(`fairlead.engine.liveness`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.liveness import PATIENCE, SILENT_SECONDS, START_PAUSE, SUSPECT_EVERY
from fairlead.errors import StoreUnavailable

log = logging.getLogger("fairlead.deaths")

WATCHED = 3
"""Number of nodes that each node watches: the next ones in the order of their names. A death is
noticed soon, unless all nodes that watch the dead node die at the same moment."""


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
    patience: float
    """Seconds to wait for nodes nearer to it. A node that starts between the two later adds
    nothing."""


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

    async def hold_lock(self, on_changed: Callable[[], None]) -> None:
        """Hold this node's lock, before the node registers. `on_changed`: see `Presence.hold`.
        Raises StoreUnavailable."""
        if self._presence is not None:
            await self._presence.hold(self._context.name, on_changed)

    async def release_lock(self) -> None:
        """Release this node's lock, after the node has left the store."""
        if self._presence is not None:
            await self._presence.close()

    def on_nodes(self, present: Collection[str]) -> None:
        """Watch the next nodes among those that are registered and not about to restart."""
        self._watched = watched_by(self._context.name, present)

    async def run(self) -> None:
        """Watch until cancelled."""
        if (presence := self._presence) is None:
            return
        pause = START_PAUSE if presence.confirm_seconds else 0.0
        while True:
            await self._context.clock.sleep(pause)
            try:
                await self.check()
                pause = SUSPECT_EVERY if self._suspects else presence.check_seconds
            except StoreUnavailable:
                self.on_outage()  # the membership logs the outage
                pause = SILENT_SECONDS  # in which living nodes come back

    def on_outage(self) -> None:
        """Begin every suspicion again: the outage may have freed the locks of living nodes."""
        self._suspects.clear()

    async def check(self) -> None:
        """Check the locks once. Raises StoreUnavailable."""
        assert self._presence is not None
        released = await self._presence.released(self._watched) if self._watched else set()
        self._suspects = {node: self._suspects[node] for node in self._suspects if node in released}
        now, confirm = self._context.clock.monotonic(), self._presence.confirm_seconds
        dead = []
        for number, node in enumerate(self._watched):
            if node in released:
                patience = PATIENCE * number
                suspect = self._suspects.setdefault(node, _Suspect(now, patience))
                suspect.patience = min(suspect.patience, patience)
                if now - suspect.since >= confirm + suspect.patience:
                    dead.append(node)
        if dead:
            log.warning("nodes died", extra={"nodes": dead})
            await self._on_dead(dead)
            self._watched = [node for node in self._watched if node not in dead]
