"""Find the backend that is registered for the scheme of a URL.

Backends are entry points of the group `fairlead.backends`; see `fairlead.ports.backend`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from fairlead.errors import ConfigurationError, NotSupported
from fairlead.ports.backend import Backend, Kind
from fairlead.ports.cluster import Cluster
from fairlead.ports.sql_store import SqlStore
from fairlead.urls import shown_url, split_url

GROUP = "fairlead.backends"

ORDERED_ONLY = (
    "an application without a SQL database has ordered queues only: `fairlead ordered tasks QUEUE`"
    " lists their tasks; for all else, name a database in the url of the App, or in FAIRLEAD_URL"
)
"""Error of whatever needs a task store, where there is none."""

TASKS_ONLY = (
    "%s keeps tasks and no more: it lacks the port fairlead.ports.sql_store.SqlStore, which"
    " results, notes, periodic tasks, transactions, on_incident, several workers and commands of"
    " people need; for these, name a database in the url of the App, or in FAIRLEAD_URL:"
    " sqlite:///tasks.db, postgresql://..."
)
"""Error of whatever needs more than tasks, where a store, which it names, has no more."""

_REDIS = (
    "Redis carries the sharded queue, fairlead.sharded.ShardedQueue(url, name), and no tasks and no"
    " triggers"
)
_REDIS_SCHEMES = ("redis", "rediss", "unix")
"""Schemes of URLs of Redis, up to a plus sign."""


def task_store(url: str) -> SqlStore:
    """Return the task store of a URL. Raises ConfigurationError for a URL of an unknown kind,
    NotSupported if tasks do not live in a SQL database."""
    return sql_store(cluster_at(url))


def sql_store(cluster: Cluster) -> SqlStore:
    """Return the store of a cluster with what people read and change. Raises NotSupported if tasks
    do not live in a SQL database."""
    if (found := cluster.with_tables()) is not None:
        return found
    if cluster.with_tasks() is None:
        raise NotSupported(ORDERED_ONLY)
    raise NotSupported(TASKS_ONLY % cluster.database.location)


def cluster_at(url: str) -> Cluster:
    """Return the task store of a URL, or the store of an application with ordered queues only.
    Raises ConfigurationError for a URL of an unknown kind."""
    return backend("store", url).store(url)


def backend(kind: Kind, url: str) -> Backend:
    """Return the backend that is registered for the scheme of a URL. Raises ConfigurationError if
    none offers this kind of adapter, or if a library it needs is not installed."""
    entry = _registered().get(split_url(url).scheme)
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


@cache
def _registered() -> dict[str, EntryPoint]:
    """Return the entry points of all backends, by scheme."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _unknown(kind: Kind, url: str) -> str:
    offers = [entry.load().offers for entry in _registered().values()]
    known = ", ".join(sorted({examples[kind] for examples in offers if kind in examples}))
    scheme, more = split_url(url).scheme, ""
    if scheme.partition("+")[0] in _REDIS_SCHEMES:
        return f"{kind} {shown_url(url)!r}: {_REDIS}; use {known}"
    if "://" in url and scheme not in _registered():
        more = f", or install the package that registers {scheme}://"
    if kind == "store":
        return f"URL {shown_url(url)!r} is of no known kind; use {known}{more}"
    return f"{kind} {shown_url(url)!r} is unknown; use 'database' (default), {known}{more}"
