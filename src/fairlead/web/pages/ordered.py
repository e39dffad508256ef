"""Ordered queues: their partitions, and the tasks in the order of their times with stuck keys
first."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from fairlead.clock import MICROS
from fairlead.errors import UnknownQueue
from fairlead.operate.ordered import OrderedManagement, OrderedPartitionView
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Ordered", route="ordered", order=50)

_MOST_TASKS = 200


class OrderedQueueView(msgspec.Struct, frozen=True):
    """One ordered queue as the list shows it; None where its servers do not respond."""

    queue: str
    partitions: int
    status: list[OrderedPartitionView]

    @property
    def unfinished(self) -> int:
        """Number of unfinished tasks in the schedule."""
        return sum(partition.unfinished for partition in self.status)

    @property
    def lag(self) -> int:
        """Number of entries of the log that are not in the schedule yet."""
        return sum(partition.lag for partition in self.status)

    @property
    def stale(self) -> int:
        """Number of tasks that should have run long ago."""
        return sum(partition.stale for partition in self.status)

    @property
    def faulty(self) -> list[OrderedPartitionView]:
        """Partitions that cannot be loaded, or have tasks that cannot be read."""
        return [each for each in self.status if each.trouble or each.unreadable]


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/ordered", show_queues, name="ordered"),
        screen("/ordered/queue", show_queue, name="ordered_queue"),
    ]


def show_queues(page: Page) -> Response:
    """Show every ordered queue that the application declares, those with trouble first."""
    found = page.shared("ordered", lambda: _read(page))
    return page.render("ordered.html", queues=found)


def _read(page: Page) -> list[OrderedQueueView]:
    found = []
    for name, queue in page.context.ordered_queues.items():
        try:
            status = page.wait(OrderedManagement(page.context).status(name))
        except UnknownQueue:  # declared, and neither served nor used yet
            status = []
        found.append(OrderedQueueView(name, queue.partitions, status))
    return sorted(found, key=lambda view: (-len(view.faulty), -view.stale, view.queue))


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
