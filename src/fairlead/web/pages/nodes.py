"""The nodes: worker processes, what they serve, the partitions that they own, and blocked loops."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Nodes", route="nodes", order=80)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/nodes", show_nodes, name="nodes")]


def show_nodes(page: Page) -> Response:
    """Show every node, the silent ones first."""
    found = read(page, "nodes")
    ordered = sorted(found, key=lambda node: (node.is_alive, node.blocked_loop is None, node.node))
    return page.render("nodes.html", nodes=ordered, now=page.context.clock.now())
