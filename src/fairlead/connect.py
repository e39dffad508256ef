"""From URLs to adapters: a look-up of the scheme among the registered backends.

Backends are entry points of the group `fairlead.backends`; see `fairlead.ports.backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple
from urllib.parse import urlsplit

from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.errors import ConfigurationError
from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notifier import Notifier
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

GROUP = "fairlead.backends"
_BESIDE = ("database", "database://")
"""URLs of an adapter that lives beside the tasks."""


class Connections(NamedTuple):
    """The adapters of an application."""

    store: TaskStore
    backlog: BacklogStore
    notifier: Notifier
    channel: TriggerChannel
    coordinator: Coordinator
    log: TaskLog | None
    """Log of ordered queues, for submits."""
    schedule: ScheduleStore | None
    new_log: Callable[[], TaskLog | None]
    """Makes another log, because each node has a log of its own."""

    def for_ordered(self) -> tuple[TaskLog, ScheduleStore]:
        """Return a new log for a node, and the schedule. Called only for ordered queues."""
        log = self.new_log()
        assert log is not None and self.schedule is not None
        return log, self.schedule

    async def close_async(self) -> None:
        """Close what this event loop has opened. The connections may be used again."""
        await self.backlog.close()
        for part in (self.log, self.schedule):
            if part is not None:
                await part.close()
        await self.store.database.close_async()


def connect(
    settings: Settings,
    clock: Clock,
    partitions: Mapping[str, int],
    counted: Callable[[str, int], None],
) -> Connections:
    """Return the adapters for these URLs without opening them. `partitions` and `counted`: see
    `BackendContext`. Raises ConfigurationError for a URL of an unknown kind."""
    home = backend("store", settings.url)
    home.check({kind: without_secret(url) for kind, url in settings.parts.items()})

    def adapter_at(kind: Kind) -> tuple[Backend, str | None]:
        url = settings.parts.get(kind)
        return (home, None) if url is None or url in _BESIDE else (backend(kind, url), url)

    channel_at, channel_url = adapter_at("channel")
    log_at, log_url = adapter_at("log")
    backlog_at, backlog_url = adapter_at("backlog")
    coordinator_at, coordinator_url = adapter_at("coordinator")
    schedule_at, schedule_url = adapter_at("schedule")
    store = home.store(settings.url)
    notifier = channel_at.notifier(channel_url, store) or home.notifier(None, store)
    assert notifier is not None  # a home backend always has one
    context = BackendContext(
        store=store,
        notifier=notifier,
        home=home,
        clock=clock,
        partitions=partitions,
        counted=counted,
    )
    return Connections(
        store,
        backlog_at.backlog(backlog_url, context),
        notifier,
        channel_at.channel(channel_url, context),
        coordinator_at.coordinator(coordinator_url, context),
        log_at.log(log_url, context),
        schedule_at.schedule(schedule_url, context),
        lambda: log_at.log(log_url, context),
    )


def task_store(url: str) -> SqlStore:
    """Return the task store of a URL. Raises ConfigurationError for a URL of an unknown kind,
    NotSupported if tasks do not live in a SQL database."""
    return backend("store", url).store(url).as_sql()


def backend(kind: Kind, url: str) -> Backend:
    """Return the backend that is registered for the scheme of a URL. Raises ConfigurationError if
    none offers this kind of adapter, or if a library it needs is not installed."""
    entry = _registered().get(urlsplit(url).scheme)
    found: Backend | None = None if entry is None else entry.load()()
    if found is None or kind not in found.offers:
        raise ConfigurationError(_unknown(kind, url))
    for module in found.modules:
        try:
            import_module(module)
        except ImportError as error:
            raise ConfigurationError(
                f"{error.name} is missing: pip install '{found.install}'"
            ) from error
    return found


def without_secret(url: str) -> str:
    """Return the URL without user and password, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.hostname or "").geturl()


@cache
def _registered() -> dict[str, EntryPoint]:
    """Return the entry points of all backends, by scheme."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _unknown(kind: Kind, url: str) -> str:
    offers = [entry.load().offers for entry in _registered().values()]
    known = ", ".join(sorted({examples[kind] for examples in offers if kind in examples}))
    scheme, more = urlsplit(url).scheme, ""
    if scheme and scheme not in _registered():
        more = f", or install the package that registers {scheme}:// for another"
    if kind == "store":
        return f"URL {without_secret(url)!r} is of no known kind; use {known}{more}"
    return f"{kind} {without_secret(url)!r} is unknown; use 'database' (default), {known}{more}"
