"""Periodic tasks: their slots, and who declares them."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Periodic", route="periodic", order=70)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [
        screen("/periodic", show_periodics, name="periodic"),
    ]


def show_periodics(page: Page) -> Response:
    """Show every periodic task."""
    found = read(page, "periodic")
    declared = {periodic.name for periodic in page.context.periodics}
    return page.render(
        "periodic.html", periodics=found, declared=declared, now=page.context.clock.now()
    )
