"""Pollers that other packages bring to a worker, by entry points.

`fairlead.pollers`: a function for one round, loaded when the first round begins; it is called every
`Intervals.<name>` seconds (an hour by default) on one elected worker. `fairlead.lake`: a class
without arguments, a `LakeExporter`; it is loaded only where there is a lake.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from fairlead.clock import Clock
from fairlead.engine.poller import Poller
from fairlead.engine.settings import Intervals
from fairlead.ports.task_store import TaskStore

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class PollerContext:
    """The surroundings of a poller."""

    store: TaskStore
    clock: Clock
    intervals: Intervals


class LakeExporter(Protocol):
    """Brings the poller that keeps a lake."""

    def check(self) -> None:
        """Raise ConfigurationError when a library is missing. Called when an application with a
        lake is declared."""

    def poller(self, folder: str, context: PollerContext) -> Poller:
        """Return the poller for the lake in this folder. Raises ConfigurationError for a folder
        that cannot be used, NotSupported for a store that has no history."""


def check_lake() -> None:
    """Raise ConfigurationError when no lake can be kept here."""
    for exporter in _lake_exporters():
        exporter.check()


def registered(context: PollerContext, lake: str | None) -> list[Poller]:
    """Return the registered pollers; those of the lake where there is one."""
    pollers = [_lazy(entry, context) for entry in _entries("fairlead.pollers")]
    if lake is not None:
        pollers += [exporter.poller(lake, context) for exporter in _lake_exporters()]
    return pollers


def _lazy(entry: EntryPoint, context: PollerContext) -> Poller:
    async def round() -> float | None:
        one_round: Callable[[PollerContext], Awaitable[float | None]] = entry.load()
        return await one_round(context)

    return Poller(entry.name, getattr(context.intervals, entry.name, HOUR), round)


def _lake_exporters() -> list[LakeExporter]:
    return [entry.load()() for entry in _entries("fairlead.lake")]


def _entries(group: str) -> Iterable[EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}.values()
