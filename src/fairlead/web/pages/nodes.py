"""The nodes: worker processes, what they serve, the partitions that they own, and blocked loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from fairlead.clock import MICROS
from fairlead.engine.lease_names import owners_of
from fairlead.model import IncidentKind
from fairlead.operate.incidents import latest_incidents
from fairlead.ports.cluster_state import NodeRecord
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Nodes", route="nodes", order=80, group="cluster")

SILENT_SECONDS = 30.0
"""Age of a heartbeat from which a node is shown as silent: twice the timeout of a node."""
_MOST_INCIDENTS = 1000


class NodeView(msgspec.Struct, frozen=True):
    """One node as the screen shows it."""

    record: NodeRecord
    partitions: int
    """Number of partitions that the node owns."""
    is_silent: bool
    blocked_since: int | None
    """Since when a handler blocks the event loop, in microseconds since the epoch; None: it does
    not."""


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/nodes", show_nodes, name="nodes")]


def show_nodes(page: Page) -> Response:
    """Show every node, the silent ones first."""
    return page.render("nodes.html", nodes=page.shared("nodes", lambda: _read(page)), **_now(page))


def _now(page: Page) -> dict[str, int]:
    return {"now": page.context.clock.now()}


def _read(page: Page) -> Sequence[NodeView]:
    now = page.context.clock.now()
    owners = owners_of(page.wait(page.context.coordinator.owners()))
    owned = Counter(owners.values())
    blocked = {
        incident.subject: incident.since
        for incident in latest_incidents(page.context, None, _MOST_INCIDENTS)
        if incident.kind is IncidentKind.BLOCKED_LOOP
    }
    silent_before = now - round(SILENT_SECONDS * MICROS)
    found = [
        NodeView(
            record,
            owned[record.node],
            record.heartbeat_at < silent_before,
            blocked.get(record.node),
        )
        for record in page.management.nodes()
    ]
    return sorted(found, key=lambda node: (not node.is_silent, node.record.node))
