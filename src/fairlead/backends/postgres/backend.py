"""The ports that a URL `postgresql://user:password@host:port/database` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.backends.sql.backend import SqlBackend, tables
from fairlead.ports.backend import BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.cluster import Cluster
from fairlead.ports.notifier import Notifier
from fairlead.ports.presence import Presence
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog

_EXAMPLE = "postgresql://user:password@host:port/database"


class PostgresBackend(SqlBackend):
    """All ports in one database."""

    offers: ClassVar[Mapping[Kind, str]] = {"store": _EXAMPLE, "backlog": _EXAMPLE}
    modules = ("asyncpg", "psycopg")
    install = "fairlead[postgres]"

    def store(self, url: str) -> Cluster:
        from fairlead.backends.postgres.database import PostgresDatabase
        from fairlead.backends.postgres.task_store import PostgresTaskStore

        return PostgresTaskStore(PostgresDatabase(url))

    def notifier(self, url: str | None, store: Cluster) -> Notifier:
        from fairlead.backends.postgres.notifier import PostgresNotifier
        from fairlead.backends.postgres.task_store import PostgresTaskStore

        tasks = tables(store)
        assert isinstance(tasks, PostgresTaskStore)
        return PostgresNotifier(tasks.database, tasks.marks)

    def presence(self, store: Cluster, notifier: Notifier) -> Presence | None:
        from fairlead.backends.postgres.notifier import PostgresNotifier
        from fairlead.backends.postgres.presence import SessionPresence

        if not isinstance(notifier, PostgresNotifier):
            return None
        return SessionPresence(tables(store).database, notifier)

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        from fairlead.backends.postgres.backlog import PostgresBacklogStore

        return PostgresBacklogStore(tables(context.store if url is None else self.store(url)))

    def log(self, url: str | None, context: BackendContext) -> TaskLog:
        from fairlead.backends.postgres.task_log import PostgresTaskLog

        return PostgresTaskLog(tables(context.store), context.clock)

    def schedule(self, url: str | None, context: BackendContext) -> ScheduleStore:
        from fairlead.backends.postgres.schedule import PostgresScheduleStore

        return PostgresScheduleStore(tables(context.store))
