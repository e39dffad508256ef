"""The backend of `toy://name`: tasks in this process, shared by all applications that use the
name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlsplit

from fairlead.backends.tasks_only import TasksBackend
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Kind
from fairlead.ports.task_store import TaskStore
from fairlead_toy.store import ToyStore

_stores: dict[str, ToyStore] = {}


class ToyBackend(TasksBackend):
    """A backend with a task store and nothing else."""

    offers: ClassVar[Mapping[Kind, str]] = {"store": "toy://any-name"}

    def tasks(self, url: str) -> TaskStore:
        name = urlsplit(url).netloc
        if not name:
            raise ConfigurationError(f"URL {url!r}: it has no name; use toy://any-name")
        return _stores.setdefault(name, ToyStore(f"toy://{name}"))
