"""The ports that a URL `sqlite:///tasks.db` gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

from fairlead.backends.sql.backend import SqlBackend, tables
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.cluster import Cluster
from fairlead.ports.notifier import Notifier
from fairlead.ports.presence import Presence
from fairlead.urls import parameters_of, shown_url, split_url

KNOWN = "sqlite:///tasks.db, sqlite:////absolute/path/tasks.db"


class SqliteBackend(SqlBackend):
    """All ports in one file."""

    offers: ClassVar[Mapping[Kind, str]] = {"store": KNOWN, "backlog": "sqlite:///backlog.db"}

    def store(self, url: str) -> Cluster:
        parts, where = split_url(url), f"URL {shown_url(url)}"
        path = unquote(parts.path).removeprefix("/")
        if not url.startswith("sqlite:///") or not path or "\0" in path:
            raise ConfigurationError(
                f"{where}: it names no file; use {KNOWN} (option: ?synchronous=FULL)"
            )
        if path == ":memory:":
            raise ConfigurationError(
                f"{where}: tasks live in a file, which workers share; use {KNOWN}, and in tests the"
                " fixture fairlead_kit, which makes one"
            )
        options = parameters_of(where, parts, ("synchronous",))
        return SqliteTaskStore(SqliteDatabase(Path(path), options.get("synchronous", "FULL")))

    def notifier(self, url: str | None, store: Cluster) -> Notifier:
        from fairlead.backends.sqlite.notifier import FifoNotifier

        database = tables(store).database
        assert isinstance(database, SqliteDatabase)
        return FifoNotifier(database.path)

    def presence(self, store: Cluster, notifier: Notifier) -> Presence:
        from fairlead.backends.sqlite.presence import FilePresence

        database = tables(store).database
        assert isinstance(database, SqliteDatabase)
        return FilePresence(database.path)

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        from fairlead.backends.sqlite.backlog import SqliteBacklogStore

        return SqliteBacklogStore(tables(context.store if url is None else self.store(url)))
