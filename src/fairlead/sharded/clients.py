"""Clients of redis-py for one server, for the master that Sentinel names, and for a cluster."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import redis
from redis import asyncio, sentinel
from redis.asyncio import retry as retry_async
from redis.asyncio import sentinel as sentinel_async
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead.forks import drop_when_forked

SENTINEL_SECONDS = 1.0
"""Seconds without a response after which a client asks the next Sentinel."""

Hosts = Sequence[tuple[str, int]]
Settings = Mapping[str, Any]


def one(url: str, settings: Settings) -> Any:
    """Return a client of one server."""
    return redis.Redis.from_url(url, **settings)


def one_async(url: str, settings: Settings) -> Any:
    """Return a client of one server, for an event loop."""
    return asyncio.Redis.from_url(url, **settings)


def of_sentinel(hosts: Hosts, service: str, of_sentinels: Settings, settings: Settings) -> Any:
    """Return a client of the master that the Sentinels name. Each new connection asks them."""
    retry = Retry(NoBackoff(), 0)  # the next Sentinel is asked instead
    manager = sentinel.Sentinel(  # type: ignore[no-untyped-call]
        hosts, sentinel_kwargs=_quick(of_sentinels, retry)
    )
    settings, is_single = _without_single(settings)
    pool = sentinel.SentinelConnectionPool(  # type: ignore[no-untyped-call]
        service, manager, **settings
    )
    return _OfSentinel(connection_pool=pool, single_connection_client=is_single)


def of_sentinel_async(
    hosts: Hosts, service: str, of_sentinels: Settings, settings: Settings
) -> Any:
    """Return a client of the master that the Sentinels name, for an event loop."""
    retry = retry_async.Retry(NoBackoff(), 0)
    manager = sentinel_async.Sentinel(  # type: ignore[no-untyped-call]
        hosts, sentinel_kwargs=_quick(of_sentinels, retry)
    )
    settings, is_single = _without_single(settings)
    pool = sentinel_async.SentinelConnectionPool(  # type: ignore[no-untyped-call]
        service, manager, **settings
    )
    return _OfSentinelAsync(connection_pool=pool, single_connection_client=is_single)


def cluster_async(hosts: Hosts, settings: Settings) -> Any:
    """Return a client of a cluster, for an event loop."""
    nodes = [asyncio.cluster.ClusterNode(host, port) for host, port in hosts]
    return asyncio.RedisCluster(startup_nodes=nodes, **settings)


def is_cluster(client: object) -> bool:
    """Return whether a client finds the server of a key in a cluster."""
    return isinstance(client, redis.RedisCluster | asyncio.RedisCluster | LazyCluster)


def address_of(client: Any) -> str:
    """Return host and port of the server of a client, of the Sentinels or of the first servers of
    the cluster; "Redis" for a client of an unknown kind."""
    if isinstance(client, LazyCluster):
        return _addresses(client.hosts)
    if isinstance(client, redis.RedisCluster | asyncio.RedisCluster):
        return _addresses(
            [(each.host, each.port) for each in client.nodes_manager.startup_nodes.values()]
        )
    pool = getattr(client, "connection_pool", None)
    if (manager := getattr(pool, "sentinel_manager", None)) is not None:
        of_sentinels = [each.connection_pool.connection_kwargs for each in manager.sentinels]
        return _addresses([(each["host"], each["port"]) for each in of_sentinels])
    settings = getattr(pool, "connection_kwargs", None)
    if settings is None:
        return "Redis"
    if (path := settings.get("path")) is not None:
        return str(path)
    return _addresses([(settings.get("host", "localhost"), settings.get("port", 6379))])


def server_of(client: Any) -> tuple[str, int] | None:
    """Return host and port of the server of a client; None if it has several, or a socket of this
    machine."""
    if is_cluster(client):
        return None
    pool: Any = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", {})
    if pool is None or hasattr(pool, "sentinel_manager") or "path" in settings:
        return None
    return settings.get("host", "localhost"), int(settings.get("port", 6379))


def has_tls(client: Any) -> bool:
    """Return whether a client uses TLS."""
    if is_cluster(client):
        is_lazy = isinstance(client, LazyCluster)
        settings = client.settings if is_lazy else client.get_connection_kwargs()
        return any(value and name.startswith("ssl") for name, value in settings.items())
    pool = getattr(client, "connection_pool", None)
    kind = getattr(pool, "connection_class", object)
    return issubclass(kind, redis.SSLConnection | asyncio.SSLConnection)


def _addresses(hosts: Sequence[tuple[Any, Any]]) -> str:
    return ",".join(
        f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}" for host, port in hosts
    )


class LazyCluster:
    """A client of a cluster for threads. It connects at first use, and anew in a forked process,
    since the client of redis-py asks the servers for their slots when it is made."""

    def __init__(self, hosts: Hosts, settings: Settings) -> None:
        self.hosts = hosts
        self.settings = settings
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client(), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The client may be used again."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _client(self) -> Any:
        if (made := self._made) is not None:
            return made
        with self._lock:
            if self._made is None:
                nodes = [
                    redis.cluster.ClusterNode(host, port)  # type: ignore[no-untyped-call]
                    for host, port in self.hosts
                ]
                self._made = redis.RedisCluster(startup_nodes=nodes, **self.settings)
            return self._made


class _OfSentinel(redis.Redis):
    """A client that closes its pool and its connections to Sentinels too."""

    connection_pool: sentinel.SentinelConnectionPool

    def close(self) -> None:
        super().close()
        self.connection_pool.disconnect()
        self.connection_pool.sentinel_manager.close()


class _OfSentinelAsync(asyncio.Redis):
    """A client that closes its pool and its connections to Sentinels too."""

    connection_pool: sentinel_async.SentinelConnectionPool

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await self.connection_pool.disconnect()
        await self.connection_pool.sentinel_manager.aclose()


def _quick(of_sentinels: Settings, retry: Any) -> dict[str, Any]:
    times = {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS}
    return {**times, **of_sentinels, "retry": retry}


def _without_single(settings: Settings) -> tuple[dict[str, Any], bool]:
    found = dict(settings)
    return found, bool(found.pop("single_connection_client", False))
