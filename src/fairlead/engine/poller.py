"""A poller, a round repeated on one elected node; and those that other packages add, by entry
points.

A function under `fairlead.pollers` is one round. The function is loaded before the first round and
called every `Intervals.<name>` seconds (an hour by default) on one elected worker. A class there is
made with the context when its worker is elected, kept until another one is, and called for each
round. A class under `fairlead.lake` is a `LakeExporter` without arguments, loaded only where there
is a lake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from fairlead.clock import Clock
from fairlead.engine.settings import Intervals
from fairlead.errors import StoreUnavailable
from fairlead.pauses import event_or_pause
from fairlead.ports.cluster import Cluster
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore

log = logging.getLogger("fairlead.pollers")

HOUR = 3600.0


class Poller:
    """Run `round` every `interval` seconds while this node is elected for `name`; `round` may
    return a shorter time until the next one, in seconds. Call `replaced` when another node is
    elected."""

    def __init__(
        self,
        name: str,
        interval: float,
        round: Callable[[], Awaitable[float | None]],
        replaced: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._interval = interval
        self._round = round
        self._replaced = replaced
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Begin the next round now."""
        self._poked.set()

    async def run(self, is_elected: Callable[[str], bool]) -> None:
        """Poll until cancelled, whenever `is_elected` returns True for the poller's name."""
        was_elected = False
        while True:
            pause = self._interval
            self._poked.clear()
            was_elected, before = is_elected(self.name), was_elected
            if before and not was_elected:
                self._replaced()
            if was_elected:
                try:
                    wanted = await self._round()
                    pause = (
                        self._interval if wanted is None else min(self._interval, max(0.0, wanted))
                    )
                except StoreUnavailable as error:
                    log.warning(
                        "poller waits for the store",
                        extra={"poller": self.name, "error": str(error)},
                    )
                except Exception:
                    log.exception("poller failed and will run again", extra={"poller": self.name})
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    # A round that ends with an error of a group forgets a cancellation meanwhile.
                    raise asyncio.CancelledError
            await event_or_pause(self._poked, pause)


@dataclass(frozen=True, kw_only=True)
class PollerContext:
    """Ports and settings that a poller gets."""

    cluster: Cluster
    """Store of queues, nodes and incidents."""
    clock: Clock
    intervals: Intervals
    announce: Callable[[Notification], None]
    """Sends the notification of a transaction that has committed."""

    @property
    def sql_store(self) -> SqlStore:
        """The store in SQL tables. Registered pollers of tasks run on no other store."""
        tables = self.cluster.with_tables()
        assert tables is not None
        return tables


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
    entries = [] if context.cluster.with_tables() is None else _entries("fairlead.pollers")
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
