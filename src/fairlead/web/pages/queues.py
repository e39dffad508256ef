"""All queues: their tasks by state, the oldest that is ready, and whether they are paused."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.errors import NotSupported
from fairlead.operate.queues import bare_queues
from fairlead.operate.summary import queue_numbers
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Queues", route="queues", order=40)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [
        screen("/queues", show_queues, name="queues"),
    ]


def show_queues(page: Page) -> Response:
    """Show every queue; on a store without rows, without facts."""
    try:
        queues, is_sample = page.of_facts(
            "queues", lambda facts: (queue_numbers(facts), facts.is_sample)
        )
    except NotSupported:
        queues, is_sample = page.shared("queues", lambda: bare_queues(page.context)), False
    return page.render(
        "queues.html", queues=queues, is_sample=is_sample, now=page.context.clock.now()
    )
