"""The health of a worker: is the process alive, and is it ready for tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from fairlead.supervisor.fleet import START_SECONDS
from fairlead.supervisor.http import Response, Routes

if TYPE_CHECKING:
    from fairlead.engine.node import Node  # of workers only, not of the supervisor

LIVE_SECONDS = 10.0
"""Seconds without a response of the event loop after which a worker is not alive."""

_BEAT_SECONDS = 1.0
LIVE, READY = "/live", "/ready"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a node at one moment."""

    node: str
    live: bool
    """Whether the event loop responds, and the node did not take too long to start."""
    ready: bool
    """Whether the node has registered, reaches its store and does not drain."""
    reason: str | None = None
    """Reason why the node is not live or not ready."""
    waits: bool = False
    """Whether the start of the node waits for a server, for which it has no time limit."""


class NodeHealth:
    """Watches the event loop of one node. `check` may be called from any thread."""

    def __init__(self, node: Node, start_timeout: float = START_SECONDS) -> None:
        """`start_timeout`: seconds after which a node that is not ready yet, and waits for no
        server, is not live."""
        self._node = node
        self._start_seconds = start_timeout
        self._created_at = self._responded_at = time.monotonic()

    async def run(self) -> None:
        """Note each second that the event loop responds, until cancelled."""
        while True:
            self._responded_at = time.monotonic()
            if self._node.waits_for is not None:
                self._created_at = self._responded_at
            await asyncio.sleep(_BEAT_SECONDS)

    def check(self) -> Health:
        """Return the health now."""
        name, silent = self._node.settings.name, time.monotonic() - self._responded_at
        if silent >= LIVE_SECONDS:
            blocked = f"the event loop has not responded for {silent:.0f} seconds"
            return Health(node=name, live=False, ready=False, reason=blocked)
        age = time.monotonic() - self._created_at
        waits = self._node.waits_for is not None
        if not (waits or self._node.ready.is_set()) and age >= self._start_seconds:
            late = f"the node is not ready {age:.0f} seconds after its start"
            return Health(node=name, live=False, ready=False, reason=late)
        reason = self._node.not_ready
        return Health(node=name, live=True, ready=reason is None, reason=reason, waits=waits)


def health_routes(node: NodeHealth, metrics: Routes) -> Routes:
    """Return the routes of one worker: its health, and those of `metrics`."""

    def respond(path: str, accept: str) -> Response | None:
        if path not in (LIVE, READY):
            return metrics(path, accept)
        health = node.check()
        return health_response(health.live if path == LIVE else health.ready, health)

    return respond


def health_response(is_good: bool, body: msgspec.Struct | Mapping[str, object]) -> Response:
    """Return 200 or 503, with the health as JSON."""
    status = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(status, msgspec.json.encode(body) + b"\n")
