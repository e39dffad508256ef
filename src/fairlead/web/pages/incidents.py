"""Open incidents, the latest first: conditions that need a person, and which are delivered to
`on_incident`."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.model import ABOUT_TASKS
from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Incidents", route="incidents", order=90)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/incidents", show_incidents, name="incidents")]


def show_incidents(page: Page) -> Response:
    """Show a page of open incidents."""
    found = read(page, "incidents")
    return page.render(
        "incidents.html",
        incidents=found.rows,
        about_tasks=ABOUT_TASKS,
        now=page.context.clock.now(),
        **page.pager(found.next),
    )
