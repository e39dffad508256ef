"""Pollers that other packages bring to a worker: entry points of the group `fairlead.pollers`, each
of them a class without arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Protocol

from fairlead.clock import Clock
from fairlead.engine.pollers import Intervals, Poller
from fairlead.ports.task_store import TaskStore

GROUP = "fairlead.pollers"


@dataclass(frozen=True, kw_only=True)
class PollerContext:
    """The surroundings of a poller."""

    store: TaskStore
    clock: Clock
    lake: str | None
    """The folder of the lake, where there is one."""
    intervals: Intervals


class PollerFactory(Protocol):
    """Makes one poller, if the application has a use for it."""

    def check(self, lake: str) -> None:
        """Raise ConfigurationError when this poller cannot serve the lake, say because a library is
        not installed. Called when an application with a lake is declared."""

    def make(self, context: PollerContext) -> Poller | None:
        """Return the poller; None where there is nothing for it to do. Raises ConfigurationError,
        NotSupported."""


@cache
def factories() -> tuple[PollerFactory, ...]:
    """Every registered factory."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    return tuple(entry.load()() for entry in found.values())


def check_lake(lake: str) -> None:
    """Raise ConfigurationError when the lake cannot be served."""
    for factory in factories():
        factory.check(lake)


def registered(context: PollerContext) -> list[Poller]:
    """Return the registered pollers that have something to do."""
    made = [factory.make(context) for factory in factories()]
    return [poller for poller in made if poller is not None]
