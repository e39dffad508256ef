"""One queue: its numbers, tenants, partitions with their levels, and limits with their holders."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import ScreenRoute, screen


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/queues/queue", show_queue, name="queue", scoped=True)]


def show_queue(page: Page) -> Response:
    """Show one queue; to a viewer of some tenants, only their part."""
    found = read(page, "queue", of_facts=True)
    return page.render(
        "queue.html",
        found=found,
        is_scoped=page.access.tenants is not None,
        now=page.context.clock.now(),
    )
