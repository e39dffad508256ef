"""A URL of Redis: one server, the master that Sentinel names, or a cluster."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal
from urllib.parse import SplitResult, unquote

from redis import ConnectionPool
from redis.connection import (
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)

from fairlead.errors import ConfigurationError
from fairlead.sharded import clients
from fairlead.sharded.confirmation import Confirmation
from fairlead.urls import hosts_of, parameters_of, query_of, shown_url, split_url

KNOWN = (
    "redis://[user:password@]host[:6379][/0], redis+sentinel://host[:26379],host/service[/0],"
    " redis+cluster://host[:6379],host, rediss for TLS, or unix://"
)

_SENTINEL = "sentinel_"
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_WAIT_OPTIONS = ("wait_replicas", "wait_ms")
_PORTS = {"server": 6379, "sentinel": 26379, "cluster": 6379}

Kind = Literal["server", "sentinel", "cluster"]


@dataclass(frozen=True)
class RedisUrl:
    """Servers of Redis, and how a client connects to them."""

    url: str = field(repr=False)
    """The URL, without the options of a confirmation."""
    location: str
    """The URL for people, without secrets."""
    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of Sentinels or of servers of a cluster; empty for one server."""
    service: str = ""
    """Name by which Sentinel knows the master; "" without Sentinel."""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Settings of redis-py for connections to servers; empty for one server, whose URL has them."""
    sentinel_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Settings of redis-py for connections to Sentinels."""
    confirmation: Confirmation | None = None
    """The replicas that must confirm a write, if the URL asks for it."""

    @classmethod
    def of(cls, url: str) -> RedisUrl:
        """Parse a URL. Raise ConfigurationError, without secrets in its text, if it is no usable
        URL of Redis."""
        parts, kind = _split(url)
        location = shown_url(url)
        if parts.netloc:
            location = location.rstrip("/")
        found = parameters_of(
            location,
            parts,
            {*_WAIT_OPTIONS, *_SENTINEL_OPTIONS, *_of_redis_py()},
            otherwise=f"use {', '.join(sorted(_WAIT_OPTIONS))}, or one of redis-py",
        )
        rest = {name: value for name, value in found.items() if name not in _WAIT_OPTIONS}
        confirmation = Confirmation.of(location, found)
        if kind == "server":
            return cls._one(parts, location, rest, confirmation)
        if kind == "cluster" and confirmation is not None:
            raise ConfigurationError(
                f"{location}: a cluster confirms no writes by replicas: leave wait_replicas out, or"
                " use redis+sentinel://"
            )
        return cls._several(parts, kind, location, rest, confirmation)

    def client(self, **settings: Any) -> Any:
        """Return a client for threads. It opens its connections at first use. `settings`: of
        redis-py; the URL's own come first."""
        all_settings = {**settings, **self.settings}
        if self.kind == "server":
            return clients.one(self.url, settings)
        if self.kind == "sentinel":
            return clients.of_sentinel(
                self.hosts, self.service, dict(self.sentinel_settings), all_settings
            )
        return clients.LazyCluster(self.hosts, all_settings)

    def client_async(self, **settings: Any) -> Any:
        """Return a client for an event loop, as `client` does."""
        all_settings = {**settings, **self.settings}
        if self.kind == "server":
            return clients.one_async(self.url, settings)
        if self.kind == "sentinel":
            return clients.of_sentinel_async(
                self.hosts, self.service, dict(self.sentinel_settings), all_settings
            )
        return clients.cluster_async(self.hosts, all_settings)

    @classmethod
    def _one(
        cls,
        parts: SplitResult,
        location: str,
        rest: Mapping[str, str],
        confirmation: Confirmation | None,
    ) -> RedisUrl:
        path, host = parts.path, parts.netloc.rpartition("@")[2]
        if parts.scheme != "unix":
            path = path.rstrip("/")
            _check_database(location, path[1:])
            if host and len(hosts_of(location, host, _PORTS["server"])) > 1:
                raise ConfigurationError(f"{location}: redis:// has one host; use {KNOWN}")
        url = f"{parts.scheme}://{parts.netloc}{path}{'?' if rest else ''}{query_of(rest)}"
        _check(url, location, rest)
        return cls(url, location, "server", confirmation=confirmation)

    @classmethod
    def _several(
        cls,
        parts: SplitResult,
        kind: Kind,
        location: str,
        rest: Mapping[str, str],
        confirmation: Confirmation | None,
    ) -> RedisUrl:
        user, _, names = parts.netloc.rpartition("@")
        hosts = hosts_of(location, names, _PORTS[kind])
        service, _, database = parts.path.rstrip("/")[1:].partition("/")
        if kind == "cluster":
            service, database = "", service
        elif not service:
            raise ConfigurationError(
                f"{location}: the name by which Sentinel knows the master is missing; use {KNOWN}"
            )
        _check_database(location, database)
        if kind == "cluster" and int(database or 0):
            raise ConfigurationError(f"{location}: a cluster has only database 0; leave it out")
        sentinel = {name: value for name, value in rest.items() if name in _SENTINEL_OPTIONS}
        if sentinel and kind == "cluster":
            raise ConfigurationError(f"{location}: {min(sentinel)} is for redis+sentinel:// only")
        tls = parts.scheme.startswith("rediss")
        of_servers = {name: value for name, value in rest.items() if name not in sentinel}
        as_one = (
            f"{'rediss' if tls else 'redis'}://{f'{user}@' if user else ''}host/{database or 0}"
            f"?{query_of(of_servers)}"
        )
        _check(as_one, location, rest)
        settings = parse_url(as_one)  # type: ignore[no-untyped-call]
        for name in ("host", "connection_class"):
            settings.pop(name, None)
        if tls:
            settings["ssl"] = True
        if kind == "cluster":
            settings.pop("db")
            try:
                clients.cluster_async(tuple(hosts), settings)  # no connection yet
            except TypeError as error:
                raise _refused(location, rest, error) from None
        of_sentinels = {
            name: value for name, value in settings.items() if name.startswith(("ssl", "socket_"))
        }
        of_sentinels |= {name.removeprefix(_SENTINEL): sentinel[name] for name in sentinel}
        return cls(
            as_one,
            location,
            kind,
            tuple(hosts),
            unquote(service),
            settings,
            of_sentinels,
            confirmation,
        )


def _split(url: str) -> tuple[SplitResult, Kind]:
    parts = split_url(url)
    technology, _, kind = parts.scheme.partition("+")
    if technology in ("redis", "rediss") and kind == "sentinel":
        return parts, "sentinel"
    if technology in ("redis", "rediss") and kind == "cluster":
        return parts, "cluster"
    if parts.scheme in ("redis", "rediss", "unix"):
        return parts, "server"
    raise ConfigurationError(f"no URL of Redis: use {KNOWN}")


def _check_database(location: str, database: str) -> None:
    """Raise ConfigurationError unless the end of the path is a number. redis-py would use database
    0 instead."""
    if database and not (database.isascii() and database.isdigit()):
        raise ConfigurationError(f"{location}: the path is no number of a database; use {KNOWN}")


@cache
def _of_redis_py() -> frozenset[str]:
    """Return the names of the parameters that connections of redis-py take."""
    classes = (ConnectionPool, Connection, SSLConnection, UnixDomainSocketConnection)
    bases = {base for each in classes for base in each.__mro__ if "__init__" in vars(base)}
    return frozenset(
        name
        for base in bases - {object}
        for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ) - {"self"}


def _check(url: str, location: str, options: Mapping[str, str]) -> None:
    """Raise ConfigurationError if redis-py does not know an option, or cannot read its value."""
    try:
        ConnectionPool.from_url(url).make_connection()  # no connection yet
    except (TypeError, ValueError) as error:
        raise _refused(location, options, error) from None


def _refused(location: str, options: Mapping[str, str], error: Exception) -> ConfigurationError:
    """Return the error without the text of redis-py, which may quote a part of the URL."""
    option = next((name for name in options if name in str(error)), "")
    why = f"option {option!r} is unknown, or has a bad value" if option else "it cannot be read"
    return ConfigurationError(f"{location}: {why}; use {KNOWN}")
