"""The ports that a URL `cassandra://host:9042/keyspace` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.config import SAME_AS_STORE
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.cluster import Cluster
from fairlead.ports.notifier import Notifier
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.trigger_channel import TriggerChannel
from fairlead.urls import shown_url

_EXAMPLE = "cassandra://host:9042/keyspace"
_NEEDED = {"log": "kafka://host:9092", "coordinator": "zookeeper://host:2181"}


class CassandraBackend(Backend):
    """Fair backlogs, and the schedule of ordered queues. Runs of these queues are moved to the
    history in the tables of the task store. A schedule is also the store of an application without
    a SQL database, which has ordered queues only."""

    offers: ClassVar[Mapping[Kind, str]] = {
        "store": _EXAMPLE,
        "backlog": _EXAMPLE,
        "schedule": _EXAMPLE,
    }
    modules = ("cassandra",)
    install = "fairlead[cassandra]"

    def check(self, urls: Mapping[str, str]) -> None:
        for name, example in _NEEDED.items():
            if urls.get(name, SAME_AS_STORE[0]) in SAME_AS_STORE:
                raise ConfigurationError(
                    f"tasks in Cassandra, without a SQL database, need {name}='{example}'"
                )
        for name in ("channel", "backlog"):
            if name in urls:
                raise ConfigurationError(
                    f"{name}={urls[name]!r}: an application without a SQL database has ordered"
                    f" queues only, which need no {name}; leave it out"
                )

    def store(self, url: str) -> Cluster:
        from fairlead.backends.cassandra.cluster import CassandraCluster

        return CassandraCluster(url)

    def notifier(self, url: str | None, store: Cluster) -> Notifier | None:
        from fairlead.backends.memory.notifier import MemoryNotifier

        return MemoryNotifier() if url is None else None

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        from fairlead.backends.sql.channel import DatabaseChannel

        return DatabaseChannel(None, context.notifier, context.clock)

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        from fairlead.backends.cassandra.backlog import CassandraBacklogStore

        assert url is not None  # `check` refuses a backlog without tasks in a database
        return CassandraBacklogStore(url, context.store)

    def schedule(self, url: str | None, context: BackendContext) -> ScheduleStore:
        from fairlead.backends.cassandra.cluster import CassandraCluster
        from fairlead.backends.cassandra.schedule import CassandraScheduleStore
        from fairlead.backends.sql.backend import tables

        store = context.store
        if isinstance(store, CassandraCluster):
            if url not in (None, store.url):
                raise ConfigurationError(
                    f"schedule={shown_url(url)!r} is not the store of the tasks,"
                    f" {store.database.location}: leave one of the two out"
                )
            return CassandraScheduleStore(store.url, None, store)
        assert url is not None
        return CassandraScheduleStore(url, tables(store))
