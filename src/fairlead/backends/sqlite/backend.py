"""The ports that a URL `sqlite:///tasks.db` gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from fairlead.backends.sql.backend import SqlBackend, tables
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.notifier import Notifier
from fairlead.ports.presence import Presence
from fairlead.ports.task_store import TaskStore

KNOWN = "sqlite:///tasks.db, sqlite:////absolute/path/tasks.db"


class SqliteBackend(SqlBackend):
    """All ports in one file."""

    offers: ClassVar[Mapping[Kind, str]] = {"store": KNOWN, "backlog": "sqlite:///backlog.db"}

    def store(self, url: str) -> TaskStore:
        parts = urlsplit(url)
        options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        unknown = options.keys() - {"synchronous"}
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path or "\0" in path or unknown:
            why = f"unknown option {', '.join(sorted(unknown))}" if unknown else "it names no file"
            shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            raise ConfigurationError(
                f"URL {shown!r}: {why}; use {KNOWN} (option: ?synchronous=FULL)"
            )
        return SqliteTaskStore(SqliteDatabase(Path(path), options.get("synchronous", "FULL")))

    def notifier(self, url: str | None, store: TaskStore) -> Notifier:
        from fairlead.backends.sqlite.notifier import FifoNotifier

        database = tables(store).database
        assert isinstance(database, SqliteDatabase)
        return FifoNotifier(database.path)

    def presence(self, store: TaskStore, notifier: Notifier) -> Presence:
        from fairlead.backends.sqlite.presence import FilePresence

        database = tables(store).database
        assert isinstance(database, SqliteDatabase)
        return FilePresence(database.path)

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        from fairlead.backends.sqlite.backlog import SqliteBacklogStore

        return SqliteBacklogStore(tables(context.store if url is None else self.store(url)))
