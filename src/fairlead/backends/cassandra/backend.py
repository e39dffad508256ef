"""The ports that a URL `cassandra://host:9042/keyspace` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.schedule_store import ScheduleStore

_EXAMPLE = "cassandra://host:9042/keyspace"


class CassandraBackend(Backend):
    """Fair backlogs, and the schedule of ordered queues. Runs of these queues are moved to the
    history in the tables of the task store."""

    offers: ClassVar[Mapping[Kind, str]] = {"backlog": _EXAMPLE, "schedule": _EXAMPLE}
    modules = ("cassandra",)
    install = "fairlead[cassandra]"

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        from fairlead.backends.cassandra.backlog import CassandraBacklogStore

        assert url is not None
        return CassandraBacklogStore(url)

    def schedule(self, url: str | None, context: BackendContext) -> ScheduleStore:
        from fairlead.backends.cassandra.schedule import CassandraScheduleStore
        from fairlead.backends.sql.backend import tables

        assert url is not None
        return CassandraScheduleStore(url, tables(context.store))
