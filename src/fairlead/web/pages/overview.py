"""The first screen: what needs a person, then the numbers of each queue."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from fairlead.errors import NotSupported
from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Overview", route="overview", order=10)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/", show_overview, name="overview", scoped=True)]


def show_overview(page: Page) -> Response:
    """Show what needs a person, and all queues. On a store without rows, lead to the ordered
    queues, which are all that it has."""
    try:
        found = read(page, "overview", of_facts=True)
    except NotSupported:
        if not page.has("ordered"):
            raise
        return RedirectResponse(page.link("ordered"), 303)
    return page.render("overview.html", summary=found)
