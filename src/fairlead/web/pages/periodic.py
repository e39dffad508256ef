"""Periodic tasks: their slots, and who declares them; run one now, pause, resume and remove."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.core.visible import visible
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, action, screen

NAVIGATION = Navigation(title="Periodic", route="periodic", order=70)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [
        screen("/periodic", show_periodics, name="periodic"),
        action("/periodic/run", run_periodic, name="periodic_run", action="periodic"),
        action("/periodic/pause", pause_periodic, name="periodic_pause", action="periodic"),
        action("/periodic/resume", resume_periodic, name="periodic_resume", action="periodic"),
        action("/periodic/remove", remove_periodic, name="periodic_remove", action="periodic"),
    ]


def show_periodics(page: Page) -> Response:
    """Show every periodic task."""
    found = page.shared("periodic", page.management.periodic.list)
    declared = {periodic.name for periodic in page.context.periodics}
    return page.render(
        "periodic.html", periodics=found, declared=declared, now=page.context.clock.now()
    )


def run_periodic(page: Page) -> Response:
    """Submit the task of a periodic task once, now."""
    name = page.form.required("name")
    handle = page.management.periodic.run(name, actor=page.access.name)
    return page.done(f"Submitted {visible(name)} as task {handle.id}.", "periodic")


def pause_periodic(page: Page) -> Response:
    """Submit no slot until the periodic task is resumed."""
    name = page.form.required("name")
    page.management.periodic.pause(name, actor=page.access.name)
    return page.done(f"{visible(name)} is paused: no slot runs until it is resumed.", "periodic")


def resume_periodic(page: Page) -> Response:
    """Submit slots again, from now on."""
    name = page.form.required("name")
    page.management.periodic.resume(name, actor=page.access.name)
    return page.done(f"{visible(name)} runs again from its next slot on.", "periodic")


def remove_periodic(page: Page) -> Response:
    """Remove a periodic task that no worker declares."""
    name = page.form.required("name")
    page.management.periodic.remove(name, actor=page.access.name)
    return page.done(f"{visible(name)} is removed.", "periodic")
