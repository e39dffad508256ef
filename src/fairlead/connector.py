"""The connector: makes the adapters of an application at first use, and closes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Protocol

from fairlead.clock import Clock
from fairlead.config import SAME_AS_STORE, Settings
from fairlead.connections import Connections, connect
from fairlead.declare.declarations import Declarations
from fairlead.errors import ConfigurationError, NotSupported
from fairlead.forks import free_when_forked
from fairlead.ports.cluster import Cluster
from fairlead.ports.notification import Notification
from fairlead.ports.notifier import Notifier
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

_run_of: ContextVar[tuple[Connector, Settings] | None] = ContextVar("fairlead_test", default=None)
"""Connector and servers of the test to which a run belongs."""


class Guard(Protocol):
    """Decides which databases this process may use; for tests."""

    def check(self, url: str) -> None:
        """Raise ConfigurationError for a task store that must not be used now."""


class Connector:
    """Maker of the adapters of an application. After `close`, the next use makes new adapters.
    Thread-safe."""

    guard: ClassVar[Guard | None] = None
    """Asked at each use of the servers of an application, but not inside `leading_to`."""

    def __init__(
        self,
        urls: Mapping[str, str | None],
        *,
        clock: Callable[[], Clock],
        declared: Declarations,
        counted: Callable[[str, int], None],
    ) -> None:
        """`urls`: as for `Settings`. `clock`: factory of the clock of the adapters. `declared`:
        queues and tasks; more may be declared later. `counted`: as for `BackendContext`."""
        self._urls = urls
        self._clock = clock
        self._declared = declared
        self._counted = counted
        self._settings: Settings | None = None
        self._connections: Connections | None = None
        self._prepared: Cluster | None = None
        self._lock = free_when_forked(threading.RLock())
        self._given: Settings | None = None
        self.on_announced: Callable[[], None] | None = None
        """Called after each notification of a submit, when its tasks are committed; for tests."""

    @property
    def settings(self) -> Settings:
        """Settings from the URLs and the environment. Raise ConfigurationError without a URL."""
        return self._given or Settings.load(None, **self._urls)

    @contextmanager
    def leading_to(self, settings: Settings) -> Iterator[None]:
        """Use the servers of these settings during the block, whatever the URLs and the environment
        say; for tests. Close the connections before and after it."""
        self.close()
        before, self._given = self._given, settings
        try:
            yield
        finally:
            self.close()
            self._given = before

    @contextmanager
    def running(self) -> Iterator[None]:
        """Bind the code of the block, and threads and asyncio tasks that it starts with its
        context, to the servers of now; for tests. Code that outlives its `leading_to` is refused,
        because it would write into the database of production or of another test."""
        token = None if self._given is None else _run_of.set((self, self._given))
        try:
            yield
        finally:
            if token is not None:
                _run_of.reset(token)

    @property
    def connections(self) -> Connections:
        """The adapters, made at first use, without a check of the schema. Raise
        ConfigurationError."""
        bound = _run_of.get()
        if bound is not None and bound[0] is self and bound[1] is not self._given:
            raise ConfigurationError("the test that this task belongs to has ended")
        with self._lock:
            settings = self._settings or self.settings
            if self.guard is not None and self._given is None:
                self.guard.check(settings.url)
            if self._connections is None:
                self.use(connect(settings, self._clock(), self._declared.partitions, self._counted))
                self._settings = settings
            assert self._connections is not None
            return self._connections

    def another(self) -> Connector:
        """Return a connector to the same servers, with adapters of its own."""
        other = Connector(
            self._urls, clock=self._clock, declared=self._declared, counted=self._counted
        )
        other._given = self._given
        return other

    def use(self, connections: Connections) -> None:
        """Use these adapters from now on, for example adapters of a test that fail on purpose."""
        self._settings = self._settings or self.settings
        self._connections = connections

    @property
    def cluster(self) -> Cluster:
        """The store of queues, nodes and incidents, with a schema that was checked. Raise
        SchemaMismatch or StoreUnavailable."""
        cluster = self.connections.cluster
        if self._prepared is not cluster:
            cluster.prepare()  # without a lock, so that no thread waits for the wait of another
            self._prepared = cluster
        return cluster

    @property
    def store(self) -> TaskStore:
        """The task store, with a schema that was checked. Raise SchemaMismatch, StoreUnavailable,
        and NotSupported in an application with ordered queues only."""
        _ = self.cluster
        return self.connections.store

    @property
    def ordered_stores(self) -> tuple[TaskLog, ScheduleStore]:
        """The log and the schedule of ordered queues. Raise NotSupported for an application that
        cannot have such queues."""
        log, schedule = self.connections.log, self.connections.schedule
        if log is None or schedule is None:
            where = self.connections.cluster.database.location
            raise NotSupported(
                f"{where} has no ordered queues: they need a SQL database, or log, schedule and"
                " coordinator without a store of tasks"
            )
        return log, schedule

    @property
    def serves_without_store(self) -> bool:
        """Whether ordered queues need no server of the task store while they run: their log, their
        schedule and the leases are elsewhere."""
        _ = self.connections
        urls = map(self._elsewhere().get, ("log", "schedule", "coordinator"))
        return all(url is not None and url not in SAME_AS_STORE for url in urls)

    @property
    def sql_store(self) -> SqlStore:
        """The task store, if it is a SQL database. Raise NotSupported for any other store."""
        _ = self.store
        return self.connections.sql_store

    @property
    def channel(self) -> TriggerChannel:
        """The trigger channel."""
        return self.connections.channel

    def announce(self, notification: Notification | None) -> None:
        """Send the notification of committed tasks, unless their transaction has."""
        if notification is not None:
            self.channel.announce(notification)
        if self.on_announced is not None:
            self.on_announced()

    @property
    def notifier(self) -> Notifier:
        """The notifier, which carries notifications to other processes."""
        return self.connections.notifier

    def migrate(self) -> list[str]:
        """Bring the tables up to date, in the backlog store and the schedule too; return the names
        of the migrations applied to the task store."""
        with self._lock:
            connections, elsewhere = self.connections, self._elsewhere()
        applied = connections.cluster.migrate()
        if "backlog" in elsewhere and connections.backlog is not None:
            _wait_for(connections.backlog.migrate())
        if "schedule" in elsewhere and connections.schedule is not None:
            _wait_for(connections.schedule.migrate())
        return applied

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            connections = self._connections
            if connections is None:
                return
            elsewhere = self._elsewhere()
            if "backlog" in elsewhere and connections.backlog is not None:
                _wait_for(connections.backlog.close())
            if "log" in elsewhere and connections.log is not None:
                _wait_for(connections.log.close())
            if connections.schedule is not None:
                _wait_for(connections.schedule.close())
            connections.channel.close_sender()
            connections.coordinator.close()
            for database in connections.databases:
                database.close()
            self._connections = self._settings = None

    def _elsewhere(self) -> Mapping[str, str]:
        """Return the URLs of adapters with a server of their own, by kind of adapter."""
        assert self._settings is not None
        return self._settings.parts


def _wait_for(work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine in a new thread, because the current thread may have a running event
    loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()
