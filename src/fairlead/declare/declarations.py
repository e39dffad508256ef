"""Declarations of one application: its queues, tasks and periodic tasks."""

from __future__ import annotations

from fairlead.core.policies.retry import Exponential
from fairlead.declare.handler import Handler
from fairlead.declare.periodic import Periodic
from fairlead.declare.queue import Queue
from fairlead.errors import ConfigurationError

DEFAULT_RETRY = Exponential(max_attempts=5)


class Declarations:
    """Registry of queues, tasks and periodic tasks; grows while modules are imported."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
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
                handler.fit(queue, DEFAULT_RETRY)

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
        self.periodics.append(
            Periodic(handler, cron, timezone, catch_up, name, ordering_key, overlap)
        )

    def add_handler(self, handler: Handler) -> None:
        """Add a task; declare its queue with the defaults if it is not declared yet. Raises
        ConfigurationError for a name that is taken, or a task that does not fit its queue."""
        if handler.name in self.handlers:
            raise ConfigurationError(
                f"a task named {handler.name!r} is registered already; give one of them name="
            )
        if handler.queue not in self.queues:
            self.add_queue(Queue(handler.queue))
        handler.fit(self.queues[handler.queue], DEFAULT_RETRY)
        self.handlers[handler.name] = handler
