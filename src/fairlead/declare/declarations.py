"""Declarations of one application: its queues, tasks and periodic tasks."""

from __future__ import annotations

from fairlead.declare.handler import Handler
from fairlead.declare.periodic import Periodic
from fairlead.declare.queue import OrderedQueue, Queue
from fairlead.errors import ConfigurationError


class Declarations:
    """Registry of queues, tasks and periodic tasks; grows while modules are imported."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.ordered: dict[str, OrderedQueue] = {}
        """The ordered queues among them."""
        self.handlers: dict[str, Handler] = {}
        self.periodics: list[Periodic] = []
        self.partitions: dict[str, int] = {}
        """Number of partitions by queue."""

    def add_queue(self, queue: Queue) -> None:
        """Add a queue. Raises ConfigurationError if it is declared already with other settings, or
        one of its tasks does not fit it."""
        name = queue.name
        if self.queues.setdefault(name, queue) != queue and self.queues[name] != Queue(name):
            raise ConfigurationError(f"queue {name!r} is declared twice with different settings")
        self.queues[name] = queue
        self.partitions[name] = queue.partitions
        for handler in self.handlers.values():
            if handler.queue == name:
                queue.fit(handler)
        for periodic in self.periodics:
            if periodic.handler.queue == name:
                periodic.fit(queue)

    def add_ordered(self, queue: OrderedQueue) -> None:
        """Add an ordered queue. Raises as `add_queue` does."""
        self.add_queue(queue)
        self.ordered[queue.name] = queue

    def add_periodic(
        self,
        handler: Handler,
        cron: str,
        timezone: str,
        catch_up: str,
        ordering_key: str | None,
        overlap: str,
    ) -> None:
        """Add a cron expression of a task; the second one of a task is named `TASK#2`. Raises
        ConfigurationError for bad values."""
        earlier = sum(periodic.handler is handler for periodic in self.periodics)
        name = f"{handler.name}#{earlier + 1}" if earlier else handler.name
        periodic = Periodic(handler, cron, timezone, catch_up, name, ordering_key, overlap)
        periodic.fit(self.queues[handler.queue])
        self.periodics.append(periodic)

    def add_handler(self, handler: Handler) -> None:
        """Add a task; declare its queue with the defaults if it is not declared yet. Raises
        ConfigurationError for a name that is taken, or a task that does not fit its queue."""
        if handler.name in self.handlers:
            raise ConfigurationError(
                f"a task named {handler.name!r} is registered already; give one of them name="
            )
        if handler.queue not in self.queues:
            self.add_queue(Queue(handler.queue))
        self.queues[handler.queue].fit(handler)
        self.handlers[handler.name] = handler
