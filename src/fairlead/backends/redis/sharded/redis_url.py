"""A URL of Redis: one server, the master that Sentinel names, or a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from redis import ConnectionPool
from redis.connection import parse_url

from fairlead.backends.redis.sharded import clients
from fairlead.backends.redis.sharded.confirmation import Confirmation
from fairlead.config import hosts_of
from fairlead.errors import ConfigurationError

KNOWN = (
    "redis://[user:password@]host[:6379][/0], redis+sentinel://host[:26379],host/service[/0],"
    " redis+cluster://host[:6379],host, rediss for TLS, or unix://"
)

_SENTINEL = "sentinel_"
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_WAIT_OPTIONS = ("wait_replicas", "wait_ms")
_PORTS = {"sentinel": 26379, "cluster": 6379}

Kind = Literal["server", "sentinel", "cluster"]


@dataclass(frozen=True)
class RedisUrl:
    """Servers of Redis, and how a client connects to them."""

    url: str = field(repr=False)
    """The URL, without the options of Fairlead."""
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
    own: Mapping[str, str] = field(default_factory=dict)
    """The options of the caller."""

    @classmethod
    def of(cls, url: str, own: Collection[str] = ()) -> RedisUrl:
        """Parse a URL, of which the caller knows the options `own`. Raise ConfigurationError,
        without secrets in its text, if it is no usable URL of Redis."""
        parts, kind = _split(url)
        found = parse_qsl(parts.query, keep_blank_values=True)
        ours = {name: value for name, value in found if name in (*own, *_WAIT_OPTIONS)}
        rest = [(name, value) for name, value in found if name not in ours]
        path = parts.path if parts.scheme == "unix" else parts.path.rstrip("/")
        parts = parts._replace(path=path, query=urlencode(rest))
        location = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        confirmation = Confirmation.of(location, ours)
        ours = {name: value for name, value in ours.items() if name not in _WAIT_OPTIONS}
        if kind == "server":
            return cls._one(parts, location, rest, confirmation, ours)
        if kind == "cluster" and confirmation is not None:
            raise ConfigurationError(
                f"{location}: a cluster confirms no writes by replicas: leave wait_replicas out, or"
                " use redis+sentinel://"
            )
        return cls._several(parts, kind, location, rest, confirmation, ours)

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
        rest: list[tuple[str, str]],
        confirmation: Confirmation | None,
        own: Mapping[str, str],
    ) -> RedisUrl:
        url = urlunsplit(parts)
        if not parts.netloc:  # urlunsplit leaves out the slashes of schemes that it does not know
            url = url.replace(":", "://", 1)
        try:
            port = f":{parts.port}" if parts.port else ""
            location = f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
        except ValueError as error:
            raise ConfigurationError(f"URL {location}: {error}; use {KNOWN}") from None
        _check(url, location, rest)
        return cls(url, location, "server", confirmation=confirmation, own=own)

    @classmethod
    def _several(
        cls,
        parts: SplitResult,
        kind: Kind,
        location: str,
        rest: list[tuple[str, str]],
        confirmation: Confirmation | None,
        own: Mapping[str, str],
    ) -> RedisUrl:
        user, _, names = parts.netloc.rpartition("@")
        hosts = hosts_of(location, names, _PORTS[kind])
        service, _, database = parts.path[1:].partition("/")
        if kind == "cluster":
            service, database = "", service
        elif not service:
            raise ConfigurationError(
                f"{location}: the name by which Sentinel knows the master is missing; use {KNOWN}"
            )
        if database and not database.isdigit():
            raise ConfigurationError(f"{location}: {database!r} is no database; use {KNOWN}")
        if kind == "cluster" and int(database or 0):
            raise ConfigurationError(f"{location}: a cluster has only database 0; leave it out")
        sentinel = {name: value for name, value in rest if name in _SENTINEL_OPTIONS}
        if sentinel and kind == "cluster":
            raise ConfigurationError(f"{location}: {min(sentinel)} is for redis+sentinel:// only")
        tls = parts.scheme.startswith("rediss")
        as_one = urlunsplit(
            (
                "rediss" if tls else "redis",
                f"{user}@host" if user else "host",
                f"/{database or 0}",
                urlencode([(name, value) for name, value in rest if name not in sentinel]),
                "",
            )
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
            urlunsplit(parts),
            location,
            kind,
            tuple(hosts),
            unquote(service),
            settings,
            of_sentinels,
            confirmation,
            own,
        )


def _split(url: str) -> tuple[SplitResult, Kind]:
    try:
        parts = urlsplit(url)
        technology, _, kind = parts.scheme.partition("+")
    except ValueError:
        raise ConfigurationError(f"no URL of Redis: use {KNOWN}") from None
    if technology in ("redis", "rediss") and kind == "sentinel":
        return parts, "sentinel"
    if technology in ("redis", "rediss") and kind == "cluster":
        return parts, "cluster"
    if parts.scheme in ("redis", "rediss", "unix"):
        return parts, "server"
    raise ConfigurationError(f"no URL of Redis: use {KNOWN}")


def _check(url: str, location: str, options: list[tuple[str, str]]) -> None:
    """Raise ConfigurationError if redis-py does not know an option, or cannot read its value."""
    try:
        ConnectionPool.from_url(url).make_connection()  # no connection yet
    except (TypeError, ValueError) as error:
        raise _refused(location, options, error) from error


def _refused(location: str, options: list[tuple[str, str]], error: Exception) -> ConfigurationError:
    option = next((name for name, _ in options if name in str(error)), "")
    why = f"option {option!r} is unknown, or has a bad value" if option else str(error)
    return ConfigurationError(f"{location}: {why}; use {KNOWN}, and ?streams=64&per_shard=6")
