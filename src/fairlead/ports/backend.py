"""Backends: the adapters that one URL scheme offers.

A package registers its backend as an entry point of the group `fairlead.backends`, named by the
scheme: `toy = "fairlead_toy:ToyBackend"`. The entry point names a class without arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

from fairlead.clock import Clock
from fairlead.errors import ConfigurationError
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.cluster import Cluster
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.presence import Presence
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.trigger_channel import TriggerChannel

Kind = Literal["store", "channel", "coordinator", "backlog", "log", "schedule"]
"""Kinds of adapters of an application; each may have a URL of its own."""


@dataclass(frozen=True, kw_only=True)
class BackendContext:
    """Adapters and facts of the application that a backend needs to make another adapter."""

    store: Cluster
    notifier: Notifier
    home: Backend
    """Backend of the task store."""
    clock: Clock
    partitions: Mapping[str, int]
    """Partitions by queue, as far as this process knows them; more may be declared later."""
    counted: Callable[[str, int], None]
    """Callback with a name and a number, for each fault worth counting."""


class Backend:
    """Makes adapters from URLs. A subclass overrides the methods of the adapters it offers.

    `url` is None for an adapter on the server of the task store: a backend with a store makes every
    kind of adapter for itself. Making an adapter opens no connection. Raises ConfigurationError for
    a bad URL.
    """

    offers: ClassVar[Mapping[Kind, str]] = {}
    """Example URL for each kind of adapter that a URL may ask for."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Optional libraries, imported before the first adapter is made."""
    install: ClassVar[str] = ""
    """Requirement that installs these libraries, such as `fairlead[kafka]`."""

    def check(self, urls: Mapping[str, str]) -> None:
        """Raise ConfigurationError if one of these adapters must be on the server of the task
        store. `urls`: URLs, without secrets, of the adapters on other servers, by the name of the
        setting."""

    def store(self, url: str) -> Cluster:
        """Return the task store. Raises ConfigurationError if this backend has none."""
        self._refuse("store")

    def notifier(self, url: str | None, store: Cluster) -> Notifier | None:
        """Return the notifier of the task store. With the `url` of the channel, return the notifier
        that replaces it, or None to keep it. Raises ConfigurationError if this backend has none."""
        if url is None:
            self._refuse("notifier")
        return None

    def presence(self, store: Cluster, notifier: Notifier) -> Presence | None:
        """Return the presence of nodes on the server of the task store; None if the store has no
        locks that end with a process."""
        return None

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        """Return the trigger channel. Raises ConfigurationError if this backend has none."""
        self._refuse("channel")

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        """Return the coordinator. Raises ConfigurationError if this backend has none."""
        self._refuse("coordinator")

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        """Return the backlog store of fair queues. Raises ConfigurationError if this backend has
        none."""
        self._refuse("backlog")

    def log(self, url: str | None, context: BackendContext) -> TaskLog | None:
        """Return a log of ordered queues, a new one for each call; None if the backend has none."""
        return None

    def schedule(self, url: str | None, context: BackendContext) -> ScheduleStore | None:
        """Return the schedule of ordered queues; None if the backend has none."""
        return None

    def _refuse(self, part: str) -> NoReturn:
        raise ConfigurationError(f"{type(self).__name__} offers no {part}")
