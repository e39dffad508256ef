"""The backend of `toy://name`: tasks in this process, shared by all applications that use the
name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlsplit

from fairlead.backends.memory.notifier import MemoryNotifier
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel
from fairlead_toy.coordinator import ToyCoordinator
from fairlead_toy.store import ToyStore


class Namespace:
    """Everything under one name."""

    def __init__(self, name: str) -> None:
        self.store = ToyStore(f"toy://{name}")
        self.notifier = MemoryNotifier()
        self.coordinator = ToyCoordinator(f"toy://{name}")


_namespaces: dict[str, Namespace] = {}


class ToyBackend(Backend):
    """A backend with a store and a coordinator of its own. The channel reads any store; the
    notifier is that of Fairlead's own tests."""

    offers: ClassVar[Mapping[Kind, str]] = {"store": "toy://any-name"}

    def store(self, url: str) -> TaskStore:
        name = urlsplit(url).netloc
        if not name:
            raise ConfigurationError(f"URL {url!r}: it has no name; use toy://any-name")
        if name not in _namespaces:
            _namespaces[name] = Namespace(name)
        return _namespaces[name].store

    def notifier(self, url: str | None, store: TaskStore) -> Notifier:
        return MemoryNotifier(beside=_namespace(store).notifier)

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        return DatabaseChannel(context.store, context.notifier, context.clock)

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        return _namespace(context.store).coordinator


def _namespace(store: TaskStore) -> Namespace:
    return next(space for space in _namespaces.values() if space.store is store)
