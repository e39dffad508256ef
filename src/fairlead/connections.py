"""The connections of an application: its adapters to the store and other servers, made from
URLs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fairlead.clock import Clock
from fairlead.config import SAME_AS_STORE, Settings
from fairlead.connect import ORDERED_ONLY, backend, sql_store
from fairlead.errors import NotSupported
from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.cluster import Cluster
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.presence import Presence
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Database
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel
from fairlead.urls import shown_url


class Connections(NamedTuple):
    """The adapters of an application, one for each port."""

    cluster: Cluster
    """The store of queues, nodes and incidents."""
    backlog: BacklogStore | None
    """Store of the levels of fair queues; None without `backlog=`."""
    notifier: Notifier
    channel: TriggerChannel
    coordinator: Coordinator
    log: TaskLog | None
    """Log of ordered queues, to which submits append."""
    schedule: ScheduleStore | None
    presence: Presence | None
    new_log: Callable[[], TaskLog | None]
    """Factory of further logs, because each node reads from its own log."""

    @property
    def tasks(self) -> TaskStore | None:
        """The store of tasks; None in an application with ordered queues only."""
        return self.cluster.with_tasks()

    @property
    def store(self) -> TaskStore:
        """The store of tasks. Raise NotSupported in an application with ordered queues only."""
        if (tasks := self.tasks) is not None:
            return tasks
        raise NotSupported(ORDERED_ONLY)

    @property
    def sql_store(self) -> SqlStore:
        """The store in SQL tables. Raise NotSupported for any other store."""
        return sql_store(self.cluster)

    @property
    def is_alone(self) -> bool:
        """Whether the store has tasks only, and so one worker at a time."""
        return self.tasks is not None and self.cluster.with_tables() is None

    @property
    def shared_cluster(self) -> Cluster:
        """The store of queues, nodes and incidents. Raise NotSupported for a store with tasks
        only."""
        return sql_store(self.cluster) if self.is_alone else self.cluster

    @property
    def databases(self) -> Iterable[Database]:
        """The database of the cluster, and that of the tasks if it is another one."""
        tasks = self.tasks
        return {self.cluster.database, *([] if tasks is None else [tasks.database])}

    def for_ordered(self) -> tuple[TaskLog, ScheduleStore]:
        """Return a new log for a node, and the schedule. Call this only if the application has an
        ordered queue."""
        log = self.new_log()
        assert log is not None and self.schedule is not None
        return log, self.schedule

    async def close_async(self) -> None:
        """Close the connections that this event loop has opened. The adapters may be used again."""
        for part in (self.backlog, self.log, self.schedule):
            if part is not None:
                await part.close()
        for database in self.databases:
            await database.close_async()


def connect(
    settings: Settings,
    clock: Clock,
    partitions: Mapping[str, int],
    counted: Callable[[str, int], None],
) -> Connections:
    """Return the adapters for the URLs of the settings; open no connection yet. `BackendContext`
    explains `partitions` and `counted`. Raise ConfigurationError for a URL of an unknown kind."""
    home = backend("store", settings.url)
    home.check({kind: shown_url(url) for kind, url in settings.parts.items()})

    def adapter_at(kind: Kind) -> tuple[Backend, str | None]:
        url = settings.parts.get(kind)
        return (home, None) if url is None or url in SAME_AS_STORE else (backend(kind, url), url)

    channel_at, channel_url = adapter_at("channel")
    log_at, log_url = adapter_at("log")
    backlog_at, backlog_url = adapter_at("backlog")
    coordinator_at, coordinator_url = adapter_at("coordinator")
    schedule_at, schedule_url = adapter_at("schedule")
    store = home.store(settings.url)
    notifier = channel_at.notifier(channel_url, store) or home.notifier(None, store)
    assert notifier is not None  # the backend of a task store always has a notifier
    context = BackendContext(
        store=store,
        notifier=notifier,
        home=home,
        clock=clock,
        partitions=partitions,
        counted=counted,
    )
    return Connections(
        store,
        backlog_at.backlog(backlog_url, context) if "backlog" in settings.parts else None,
        notifier,
        channel_at.channel(channel_url, context),
        coordinator_at.coordinator(coordinator_url, context),
        log_at.log(log_url, context),
        schedule_at.schedule(schedule_url, context),
        home.presence(store, notifier),
        lambda: log_at.log(log_url, context),
    )
