"""The ports that every SQL database gives beside the task store."""

from __future__ import annotations

from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Backend, BackendContext
from fairlead.ports.cluster import Cluster
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.trigger_channel import TriggerChannel


class SqlBackend(Backend):
    """Channel, coordinator, task log and schedule in the tables of the task store.

    A dialect adds the store, the notifier and the backlog.
    """

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        return DatabaseChannel(tables(context.store), context.notifier, context.clock)

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        return DatabaseCoordinator(tables(context.store))

    def log(self, url: str | None, context: BackendContext) -> TaskLog:
        from fairlead.backends.sql.task_log import SqlTaskLog

        return SqlTaskLog(tables(context.store), context.clock)

    def schedule(self, url: str | None, context: BackendContext) -> ScheduleStore:
        from fairlead.backends.sql.schedule import SqlScheduleStore

        return SqlScheduleStore(tables(context.store))


def tables(store: Cluster) -> SqlTaskStore:
    """Return `store` if it is an SQL store.

    Raise ConfigurationError for any other store, because it cannot have tables beside its tasks.
    """
    if not isinstance(store, SqlTaskStore):
        raise ConfigurationError(
            f"{store.database.location} has no tables: give this part a URL of its own"
        )
    return store
