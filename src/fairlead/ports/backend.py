"""A backend: the parts of an application that one URL scheme offers.

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
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

Kind = Literal["store", "channel", "coordinator", "backlog", "log", "schedule"]
"""One part of an application; each may have a URL of its own."""


@dataclass(frozen=True, kw_only=True)
class BackendContext:
    """The surroundings of a part: what the application has already."""

    store: TaskStore
    notifier: Notifier
    home: Backend
    """The backend that the tasks live in."""
    clock: Clock
    partitions: Mapping[str, int]
    """By queue, as far as this process knows them; more may be declared later."""
    counted: Callable[[str, int], None]
    """Called with a name and a number for every trouble that is worth counting."""


class Backend:
    """Makes parts from URLs. A subclass overrides the parts that its scheme offers.

    `url` is None for a part that lives beside the tasks: a backend with a store makes every kind of
    part for itself. Making a part opens nothing. Raises ConfigurationError for a bad URL.
    """

    offers: ClassVar[Mapping[Kind, str]] = {}
    """An example of a URL for each kind of part that may be asked for by URL."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Optional libraries, imported before the first part is made."""
    install: ClassVar[str] = ""
    """The requirement that brings these libraries: `fairlead[redis]`."""

    def check(self, urls: Mapping[str, str]) -> None:
        """Raise ConfigurationError when parts of the application must not live elsewhere. `urls`:
        of those that are to, by the name of the setting, without secrets."""

    def store(self, url: str) -> TaskStore:
        """Return the task store."""
        self._refuse("store")

    def notifier(self, url: str | None, store: TaskStore) -> Notifier | None:
        """Return the notifier beside the tasks; for a `url`, which is the channel's, None keeps the
        notifier beside the tasks."""
        if url is None:
            self._refuse("notifier")
        return None

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        """Return the trigger channel."""
        self._refuse("channel")

    def coordinator(self, url: str | None, context: BackendContext) -> Coordinator:
        """Return the coordinator."""
        self._refuse("coordinator")

    def backlog(self, url: str | None, context: BackendContext) -> BacklogStore:
        """Return the backlog store of fair queues."""
        self._refuse("backlog")

    def log(self, url: str | None, context: BackendContext) -> TaskLog | None:
        """Return a log of ordered queues, a new one for each call; None where there are none."""
        return None

    def schedule(self, url: str | None, context: BackendContext) -> ScheduleStore | None:
        """Return the schedule of ordered queues; None where there are none."""
        return None

    def _refuse(self, part: str) -> NoReturn:
        raise ConfigurationError(f"{type(self).__name__} offers no {part}")
