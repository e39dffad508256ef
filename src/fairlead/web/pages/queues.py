"""All queues: their tasks by state, the oldest that is ready, and whether they are paused."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.errors import NotSupported
from fairlead.operate.queues import QueueList, queue_list
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, action, screen

NAVIGATION = Navigation(title="Queues", route="queues", order=40)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [
        screen("/queues", show_queues, name="queues"),
        action("/queues/pause", pause_queue, name="queue_pause", action="pause"),
        action("/queues/resume", resume_queue, name="queue_resume", action="pause"),
    ]


def show_queues(page: Page) -> Response:
    """Show every queue."""
    found = _read(page)
    return page.render(
        "queues.html",
        queues=found.queues,
        is_sample=found.is_sample,
        now=page.context.clock.now(),
    )


def _read(page: Page) -> QueueList:
    try:
        return page.of_facts("queues", lambda facts: queue_list(page.context, facts=facts))
    except NotSupported:
        return page.shared("queues", lambda: queue_list(page.context))


def pause_queue(page: Page) -> Response:
    """Pause a queue in the whole cluster."""
    queue = page.form.required("queue")
    page.management.pause(queue, actor=page.access.name)
    return page.done(f"{queue} is paused: running tasks end, no others start.", "queues")


def resume_queue(page: Page) -> Response:
    """Start tasks of a paused queue again."""
    queue = page.form.required("queue")
    page.management.unpause(queue, actor=page.access.name)
    return page.done(f"{queue} runs again.", "queues")
