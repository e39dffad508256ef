"""Open incidents, the latest first: conditions that need a person, and which are delivered to
`on_incident`."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.model import ABOUT_TASKS
from fairlead.operate.incidents import latest_incidents
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Incidents", route="incidents", order=90)

_MOST_ID = (1 << 63) - 1


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/incidents", show_incidents, name="incidents")]


def show_incidents(page: Page) -> Response:
    """Show open incidents below an id."""
    rows = page.query.rows()
    below = page.query.whole("below", 0, _MOST_ID, _MOST_ID)
    found = page.shared(
        ("incidents", below, rows), lambda: latest_incidents(page.context, below, rows + 1)
    )
    shown = found[:rows]
    return page.render(
        "incidents.html",
        incidents=shown,
        about_tasks=ABOUT_TASKS,
        first=page.with_query(below=None) if below < _MOST_ID else None,
        following=page.with_query(below=shown[-1].id) if len(found) > rows else None,
        now=page.context.clock.now(),
    )
