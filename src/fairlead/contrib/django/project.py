"""The Fairlead application of a Django project, whose tasks live in the project's database."""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from typing import Any

from django.db import connections
from django.utils.module_loading import autodiscover_modules

from fairlead.app import App
from fairlead.backends.sql.migrate import check
from fairlead.config import Settings
from fairlead.connections import Connections
from fairlead.connector import Connector
from fairlead.contrib.django.configuration import Configuration
from fairlead.contrib.django.connections import CleanConnections, begin_transaction
from fairlead.contrib.django.database_url import is_in_memory, url_of
from fairlead.core import values
from fairlead.declare.task import Task
from fairlead.engine.node import Node
from fairlead.errors import ConfigurationError, SchemaMismatch
from fairlead.forks import free_when_forked
from fairlead.ports.task_store import TaskStore

_OPTIONS = set(inspect.signature(App).parameters) - {"url"}
"""Options that FAIRLEAD['APP'] may give."""

UNREACHABLE = "sqlite:////dev/null/in-memory"
"""URL that stands for a database in memory, which only Django's own connection can use."""


class DjangoConnector(Connector):
    """Maker of adapters for the database in DATABASES, which tests may rename at any time."""

    guard = None  # Django's own tests decide which databases they use
    _database_name: Any = None

    @property
    def settings(self) -> Settings:
        return Settings.load(None, **{**self._urls, "url": _current_url()})

    @property
    def connections(self) -> Connections:
        with self._lock:
            # Compared at each use, so the name only: a URL takes longer to make.
            alias = Configuration.load().database
            name = (alias, connections[alias].settings_dict["NAME"])
            if name != self._database_name:
                self.close()
                self._database_name = name
            return super().connections

    @property
    def store(self) -> TaskStore:
        """The task store. Django's migrations make its tables; workers check them."""
        return self.connections.store


class DjangoApp(App):
    """An application on the database in FAIRLEAD['DATABASE'].

    Its sync handlers use Django's connections: checked and cleaned around each run, and with
    `transactional=True` their ORM writes commit together with the end of the task.
    """

    connector_class = DjangoConnector

    def __init__(self, configuration: Configuration) -> None:
        options = {**configuration.app}
        if unknown := set(options) - _OPTIONS:
            raise ConfigurationError(
                f"FAIRLEAD['APP']: unknown name {values.brief(min(map(str, unknown)))}; known:"
                f" {', '.join(sorted(_OPTIONS))}"
            )
        ours = [CleanConnections(lambda name: self.handlers.get(name))]
        try:
            theirs = values.many("interceptors", options.get("interceptors", ()))
            options["interceptors"] = [*ours, *theirs]
            options.setdefault("name", "fairlead")
            super().__init__(UNREACHABLE, **options)
        except ConfigurationError as error:
            raise ConfigurationError(f"FAIRLEAD['APP']: {error}") from error
        self.node_name = ""
        """Name of the last node of this process; empty before the first one."""

    @property
    def alias(self) -> str:
        """Name of the database in DATABASES."""
        return Configuration.load().database

    @property
    def is_in_memory(self) -> bool:
        """Whether only Django's own connection reaches the database."""
        connection = connections[self.alias]
        return is_in_memory(connection.vendor, connection.settings_dict)

    def task(self, function: Any = None, **options: Any) -> Any:
        """Register a function as a task, as `App.task` does. Raises ConfigurationError for an
        asynchronous transactional one, because Django has no asynchronous transactions."""
        if function is None:
            return functools.partial(self.task, **options)
        if options.get("transactional") and inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"task {function.__qualname__!r}: Django has no asynchronous transactions: declare"
                " a transactional task with `def`"
            )
        task: Task[Any, Any] = super().task(**options)(function)
        if task.handler.transactional:
            task.handler.transaction = functools.partial(begin_transaction, self.alias)
        return task

    def node(self, **settings: Any) -> Node:
        """Return a worker node, as `App.node` does. Raises SchemaMismatch without the tables."""
        self.check_tables()
        node = super().node(**settings)
        self.node_name = node.settings.name
        return node

    @property
    def migrate_command(self) -> str:
        """The command that makes the tables."""
        return "manage.py migrate" + (
            "" if self.alias == "default" else f" --database {self.alias}"
        )

    def check_tables(self) -> None:
        """Raise SchemaMismatch unless Django's migrations have made the tables. Raise
        ConfigurationError for tables that they do not make."""
        if self.sql_store.keeps_levels:
            raise ConfigurationError(
                "backlog='database': a database of Django keeps no levels of fair queues; leave the"
                " setting out, and tasks beyond memory wait in their rows"
            )
        try:
            check(self.sql_store.database)
        except SchemaMismatch as error:
            cure = f"run `{self.migrate_command}`"
            raise SchemaMismatch(str(error).replace("run `fairlead migrate`", cure)) from error

    def import_tasks(self) -> None:
        """Import the modules in FAIRLEAD['MODULES']."""
        for name in Configuration.load().modules:
            if "." in name:
                importlib.import_module(name)
            else:
                autodiscover_modules(name)


_app: DjangoApp | None = None
_lock = free_when_forked(threading.RLock())


def get_app() -> DjangoApp:
    """Return the application of this project, the same at each call. Raises ConfigurationError for
    a wrong setting FAIRLEAD."""
    global _app
    with _lock:
        if _app is None:
            _app = DjangoApp(Configuration.load())
        return _app


def _current_url() -> str:
    configuration = Configuration.load()
    if configuration.url is not None:
        return configuration.url
    if configuration.database not in connections:
        raise ConfigurationError(
            f"FAIRLEAD['DATABASE'] {configuration.database!r} is not in DATABASES, which has"
            f" {', '.join(connections)}"
        )
    connection = connections[configuration.database]
    if is_in_memory(connection.vendor, connection.settings_dict):
        return UNREACHABLE
    return url_of(configuration.database, connection.vendor, connection.settings_dict)
