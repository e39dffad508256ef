"""The trigger channel of an application without a SQL database: it has no triggers, because ordered
queues need none."""

from __future__ import annotations

from fairlead.backends.cassandra.database import SQL_CURE
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.errors import ConfigurationError
from fairlead.ports.trigger_channel import QueueDeclaration


class OrderedChannel(DatabaseChannel):
    """A channel for ordered queues only. See `fairlead.ports.trigger_channel.TriggerChannel`."""

    location = "no channel: ordered queues need none"

    def check_queue(self, queue: QueueDeclaration) -> None:
        if not queue.is_ordered:
            raise ConfigurationError(
                f"queue {queue.name!r} is not ordered, and there is no SQL database for it:"
                f" {SQL_CURE}; or declare the queue with kind='ordered'"
            )
