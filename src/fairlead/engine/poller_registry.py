"""Pollers that other packages add to a worker, by entry points.

A function under `fairlead.pollers` is one round. The function is loaded before the first round and
called every `Intervals.<name>` seconds (an hour by default) on one elected worker. A class there is
made with the context when its worker is elected, kept until another one is, and called for each
round. A class under `fairlead.lake` is a `LakeExporter` without arguments, loaded only where there
is a lake.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from fairlead.clock import Clock
from fairlead.engine.poller import Poller
from fairlead.engine.settings import Intervals
from fairlead.ports.notification import Notification
from fairlead.ports.ordered_store import OrderedStore
from fairlead.ports.task_store import TaskStore

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class PollerContext:
    """Ports and settings that a poller gets."""

    cluster: OrderedStore
    """Store of queues, nodes and incidents."""
    clock: Clock
    intervals: Intervals
    announce: Callable[[Notification], None]
    """Sends the notification of a transaction that has committed."""

    @property
    def store(self) -> TaskStore:
        """The task store. An application with ordered queues only has no pollers of tasks."""
        tasks = self.cluster.with_tasks()
        assert tasks is not None
        return tasks


class LakeExporter(Protocol):
    """Provider of the poller that exports into a lake."""

    def check(self) -> None:
        """Raise ConfigurationError when a library is missing. Called when an application declares a
        lake."""

    def poller(self, lake: str, catalog: str | None, context: PollerContext) -> Poller:
        """Return the poller for the lake in this folder or at this URL, with the catalog at its own
        URL or in the folder. Raises ConfigurationError for a lake that cannot be used, NotSupported
        for a store that has no history."""


def check_lake() -> None:
    """Raise ConfigurationError when this installation cannot export into a lake."""
    for exporter in _lake_exporters():
        exporter.check()


def registered(context: PollerContext, lake: str | None, catalog: str | None) -> list[Poller]:
    """Return the registered pollers of tasks, with the lake's if there is a lake."""
    entries = [] if context.cluster.with_tasks() is None else _entries("fairlead.pollers")
    pollers = [_lazy(entry, context) for entry in entries]
    if lake is not None:
        pollers += [exporter.poller(lake, catalog, context) for exporter in _lake_exporters()]
    return pollers


def _lazy(entry: EntryPoint, context: PollerContext) -> Poller:
    made: list[Callable[[], Awaitable[float | None]]] = []

    async def round() -> float | None:
        if not made:
            loaded = entry.load()
            made.append(loaded(context) if isinstance(loaded, type) else partial(loaded, context))
        return await made[0]()

    return Poller(
        entry.name, getattr(context.intervals, entry.name, HOUR), round, replaced=made.clear
    )


def _lake_exporters() -> list[LakeExporter]:
    return [entry.load()() for entry in _entries("fairlead.lake")]


@cache  # a look-up reads the metadata of all installed packages
def _entries(group: str) -> Collection[EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}.values()
