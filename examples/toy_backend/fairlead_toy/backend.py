"""What `toy://name` offers: everything in this process, shared by all who use the name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlsplit

from fairlead.backends.memory.backlog import MemoryBacklogStore
from fairlead.backends.memory.notifier import MemoryNotifier
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel
from fairlead_toy.coordinator import ToyCoordinator
from fairlead_toy.store import ToyStore


class Place:
    """Everything under one name."""

    def __init__(self, name: str) -> None:
        self.store = ToyStore(f"toy://{name}")
        self.notifier = MemoryNotifier()
        self.backlog = MemoryBacklogStore()
        self.coordinator = ToyCoordinator(f"toy://{name}")


_places: dict[str, Place] = {}


class ToyBackend(Backend):
    """Only the store is this package's own work; the channel reads any store, and the notifier and
    the backlog are those that Fairlead tests itself with."""

    offers: ClassVar[Mapping[Kind, str]] = {"store": "toy://any-name"}

    def store(self, url: str) -> TaskStore:
        name = urlsplit(url).netloc
        if not name:
            raise ConfigurationError(f"URL {url!r}: it has no name; use toy://any-name")
        if name not in _places:
            _places[name] = Place(name)
        return _places[name].store

    def notifier(self, url: str | None, store: TaskStore) -> Notifier:
        return MemoryNotifier(beside=_place(store).notifier)

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        return DatabaseChannel(context.store, context.notifier, context.clock)

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        return _place(context.store).coordinator

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        return _place(context.store).backlog


def _place(store: TaskStore) -> Place:
    return next(place for place in _places.values() if place.store is store)
