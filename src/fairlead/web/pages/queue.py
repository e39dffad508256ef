"""One queue: its numbers, tenants, partitions with their levels, and limits with their holders."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.core.visible import visible
from fairlead.operate.overview import QueueView, queue_view
from fairlead.web.page import Page
from fairlead.web.routing import ScreenRoute, screen


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/queues/queue", show_queue, name="queue", scoped=True)]


def show_queue(page: Page) -> Response:
    """Show one queue; to a viewer of some tenants, only their part."""
    name, scope = page.query.required("name"), page.access.tenants
    found: QueueView = page.of_facts(
        ("queue", name, scope),
        lambda facts: page.wait(queue_view(page.context, name, tenants=scope, facts=facts)),
    )
    return page.render(
        "queue.html",
        found=found,
        name=visible(name),
        is_scoped=scope is not None,
        now=page.context.clock.now(),
    )
