"""Ordered queues: their partitions, and the tasks in the order of their times with stuck keys
first."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.clock import MICROS
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.results import OrderedQueue
from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Ordered", route="ordered", order=50)

_MOST_TASKS = 200


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/ordered", show_queues, name="ordered"),
        screen("/ordered/queue", show_queue, name="ordered_queue"),
    ]


def show_queues(page: Page) -> Response:
    """Show every ordered queue that the application declares, those with trouble first."""

    def rank(queue: OrderedQueue) -> tuple[int, int]:
        faulty = sum(bool(each.trouble or each.unreadable) for each in queue.partitions)
        return -faulty, -sum(each.stale for each in queue.partitions)

    found = sorted(read(page, "ordered"), key=rank)
    return page.render("ordered.html", queues=found, declared=page.context.ordered_queues)


def show_queue(page: Page) -> Response:
    """Show the partitions of a queue and its next tasks, those that have run first."""
    queue, key = page.query.required("name"), page.query.text("key")
    rows = min(page.query.rows(), _MOST_TASKS)
    management = OrderedManagement(page.context)
    status = page.shared(("ordered", queue), lambda: page.wait(management.status(queue)))
    tasks = page.shared(
        ("ordered tasks", queue, key, rows),
        lambda: page.wait(management.tasks(queue, ordering_key=key, limit=rows)),
    )
    now = page.context.clock.now()
    return page.render(
        "ordered_queue.html",
        queue=queue,
        key=key,
        partitions=sorted(status, key=lambda each: (not each.trouble, -each.stale, each.partition)),
        tasks=sorted(tasks, key=lambda each: (-each.attempt, each.key)),
        now=now,
        late=now - 60 * MICROS,
        rows=rows,
    )
