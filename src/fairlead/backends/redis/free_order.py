"""Checks of the channels over Redis, which decide the order themselves: fairness keys take turns,
and any free node gets the next task."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.model import NewTask
from fairlead.ports.trigger_channel import QueueDeclaration


def check_queue(queue: QueueDeclaration, location: str) -> None:
    """Raise ConfigurationError for a queue that asks for an order or a cost of its own."""
    if queue.cost != "tasks":
        raise ConfigurationError(
            f"queue {queue.name!r}: cost={queue.cost!r} does not go with {location}, which counts"
            " tasks: leave cost= out, or use another channel"
        )
    if queue.order is not None:
        raise ConfigurationError(
            f"queue {queue.name!r}: order={queue.order!r} does not go with {location}, which"
            " rotates among fairness keys: leave order= out, or use another channel"
        )


def check_tasks(tasks: Sequence[NewTask], location: str) -> None:
    """Raise InvalidTask if a task has an ordering key."""
    if any(task.ordering_key is not None for task in tasks):
        raise InvalidTask(
            f"ordering_key: {location} gives each task to whichever node is free, in no order; use"
            " the channel of the database, or Kafka"
        )
