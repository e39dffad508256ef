"""Backends of stores with tasks only (`fairlead.ports.task_store`), for one worker at a time.

The queues, nodes, leases and incidents of such an application are in a private SQLite file, which
ends with the process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from fairlead.backends.memory.notifier import MemoryNotifier
from fairlead.backends.sql.backend import tables
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.config import SAME_AS_STORE
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Backend, BackendContext
from fairlead.ports.cluster import Cluster
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel


class PrivateCluster(SqliteTaskStore):
    """The cluster of one process, beside a store of tasks."""

    def __init__(self, tasks: TaskStore) -> None:
        folder = tempfile.mkdtemp(prefix="fairlead-")
        weakref.finalize(self, _remove, folder, os.getpid())
        super().__init__(SqliteDatabase(Path(folder) / "cluster.db", synchronous="OFF"))
        self.database.location = tasks.database.location
        self._tasks = tasks

    def with_tasks(self) -> TaskStore:
        return self._tasks

    def with_tables(self) -> None:
        return None


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a forked child that ends
        shutil.rmtree(folder, ignore_errors=True)


class TasksBackend(Backend):
    """The backend of a store with tasks only. A subclass makes the task store, and lists an example
    URL in `offers`."""

    def tasks(self, url: str) -> TaskStore:
        """Return the task store. Raises ConfigurationError for a bad URL."""
        raise NotImplementedError

    def check(self, urls: Mapping[str, str]) -> None:
        for name, url in urls.items():
            if url not in SAME_AS_STORE:
                raise ConfigurationError(
                    f"{name}={url!r}: a store with tasks only, for one worker, has no other"
                    f" {name}; leave it out, or name a SQL database in the url of the App"
                )

    def store(self, url: str) -> Cluster:
        return PrivateCluster(self.tasks(url))

    def notifier(self, url: str | None, store: Cluster) -> Notifier:
        return MemoryNotifier()

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        return DatabaseChannel(context.store.with_tasks(), context.notifier, context.clock)

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        return DatabaseCoordinator(tables(context.store))
