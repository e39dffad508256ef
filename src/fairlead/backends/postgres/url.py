"""The URL of a PostgreSQL database: for both drivers, and with parameters of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg

from fairlead.errors import ConfigurationError

CONNECT_TIMEOUT = 10
"""Seconds to wait for a connection, unless the URL has connect_timeout."""

POOL_SIZE = 8
"""Connections at most per pool, unless the URL has pool_size."""

_OURS = ("pooler", "pool_size", "direct")
_SET_BY_US = ("application_name", "client_encoding", "connect_timeout")
_PSYCOPG_ONLY = (
    *_SET_BY_US,
    "fallback_application_name",
    "gssdelegation",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "sslcompression",
    "sslsni",
    "tcp_user_timeout",
)
"""Parameters that asyncpg lacks, and that change nothing which a user relies on."""

_ASYNCPG = (
    "dbname",
    "gsslib",
    "host",
    "krbsrvname",
    "options",
    "passfile",
    "password",
    "port",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
    "user",
)
"""Parameters that asyncpg reads; all others go to the server as settings."""

_VALUES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        "any",
        "read-write",
        "read-only",
        "primary",
        "standby",
        "prefer-standby",
    ),
}
_WEAK = ("disable", "prefer")
"""Values of parameters for security that ask for nothing."""


class Pooler(StrEnum):
    """Kind of the pooler between this process and the server."""

    NONE = "none"
    SESSION = "session"
    """A connection keeps its session of the server, but the pooler refuses start-up settings."""
    TRANSACTION = "transaction"
    """Each transaction may get another session of the server."""


@dataclass(frozen=True, kw_only=True)
class PostgresUrl:
    """A URL that was read. Without `pooler`, the first connection finds it out."""

    psycopg: str
    asyncpg: str
    location: str
    """Name of the database for messages, without secrets."""
    tries: Sequence[dict[str, Any]]
    """Arguments of asyncpg for each server to try."""
    connect_timeout: int  # seconds, for each server; 0: without limit
    pool_size: int  # connections at most, per pool
    pooler: Pooler | None
    direct: PostgresUrl | None
    """Way around the pooler, for the connection that listens; None without a parameter `direct`."""


def read_url(url: str) -> PostgresUrl:
    """Read a URL. Raise ConfigurationError, which quotes no secret."""
    try:
        parts = _split(url)
        query = [_translated(*pair) for pair in _parameters(parts)]
        given = {name: value for name, value in query if name in _OURS}
        rest = [(name, value) for name, value in query if name not in _OURS]
        _check_parameters(rest)
        known = psycopg.conninfo.conninfo_to_dict(_joined(parts, rest))
        servers = _servers(known)
        timeout = int(str(known.get("connect_timeout", CONNECT_TIMEOUT)))
    except (ValueError, psycopg.Error):
        # Neither chained nor quoted, because the text may contain a password.
        raise ConfigurationError(
            "cannot read the PostgreSQL URL; write postgresql://user:password@host:port/database,"
            " or user:password@host1:port1,host2:port2, and special characters as percent codes"
            " (%40 for @)"
        ) from None
    target = known.get("target_session_attrs")
    if len(servers) > 1 and target is None:
        # A standby would accept the connection, and then refuse every write.
        target = "read-write"
        rest.append(("target_session_attrs", target))
    return PostgresUrl(
        psycopg=_joined(parts, rest),
        asyncpg=_joined(parts, [pair for pair in rest if pair[0] in _ASYNCPG]),
        location=_location(servers, known),
        tries=_tries(servers, target),
        connect_timeout=max(timeout, 0),
        pool_size=_pool_size(given.get("pool_size")),
        pooler=_pooler(given.get("pooler")),
        direct=_direct(url, given.get("direct")),
    )


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in ("postgresql", "postgres"):
        raise ValueError(scheme)
    if parts.netloc.count("@") > 1 or "@" in parts.path:
        raise ValueError("a part of the password would count as a host or a database")
    return parts


def _parameters(parts: SplitResult) -> list[tuple[str, str]]:
    """Return the parameters as libpq reads them, to which a plus sign is a plus sign."""
    return parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True)


def _translated(name: str, value: str) -> tuple[str, str]:
    """Return the parameter as libpq reads it."""
    return ("sslmode", "require") if (name, value) == ("ssl", "true") else (name, value)


def _check_parameters(query: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigurationError for a parameter that no driver knows, or that only one obeys."""
    names = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    for name, value in query:
        where = f"{name} in the PostgreSQL URL"
        if name not in names:
            if "@" in value:  # a part of the password, after a question mark
                raise ValueError(name)
            raise ConfigurationError(
                f"unknown parameter {where}; settings of the server are written as"
                " options=-cNAME%3DVALUE"
            )
        if value not in _VALUES.get(name, (value,)):
            raise ConfigurationError(
                f"{name}={value} in the PostgreSQL URL: write {', '.join(_VALUES[name])}"
            )
        if (name, value) == ("sslrootcert", "system"):
            raise ConfigurationError(
                f"{where}: asyncpg cannot find the certificates of the system; write the path of"
                " their file, and sslmode=verify-full"
            )
        if name not in _ASYNCPG and name not in _PSYCOPG_ONLY and value not in _WEAK:
            raise ConfigurationError(
                f"{where}: asyncpg, which connects event loops, cannot obey it; leave it out"
            )


def _joined(parts: SplitResult, query: Sequence[tuple[str, str]]) -> str:
    # Percent signs only: libpq reads a plus sign as a plus sign.
    options = urlencode(query, quote_via=quote)
    return f"postgresql://{parts.netloc}{parts.path}{options and '?'}{options}"


def _servers(known: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return host and port of each server; raise ValueError."""
    hosts = str(known.get("host") or "").split(",")
    ports = [int(port or 5432) for port in str(known.get("port") or "").split(",")]
    if not all(0 < port < 65536 for port in ports):
        raise ValueError("a port is out of range")
    if len(ports) == 1:
        ports *= len(hosts)
    return list(zip(hosts, ports, strict=True))


def _tries(servers: Sequence[tuple[str, int]], target: Any) -> list[dict[str, Any]]:
    """Return the arguments of asyncpg for each try. A standby that is only preferred is tried
    before all servers are."""
    if len(servers) == 1:
        return [{}]
    targets = ["standby", "any"] if target == "prefer-standby" else [target]
    return [
        {"host": host, "port": port, "target_session_attrs": each}
        for each in targets
        for host, port in servers
    ]


def _location(servers: Sequence[tuple[str, int]], known: Mapping[str, Any]) -> str:
    names = ",".join(f"{host or 'local socket'}:{port}" for host, port in servers)
    return f"PostgreSQL at {names}/{known.get('dbname') or ''}"


def _pool_size(value: str | None) -> int:
    if value is None:
        return POOL_SIZE
    if not value.isdecimal() or not 1 <= int(value) <= 1000:
        raise ConfigurationError(
            f"pool_size={value} in the PostgreSQL URL: write a number from 1 to 1000"
        )
    return int(value)


def _pooler(value: str | None) -> Pooler | None:
    if value is None:
        return None
    try:
        return Pooler(value)
    except ValueError:
        raise ConfigurationError(
            f"pooler={value} in the PostgreSQL URL: write {', '.join(Pooler)}"
        ) from None


def _direct(url: str, address: str | None) -> PostgresUrl | None:
    """Return the URL with another host and port, and without a pooler."""
    if address is None:
        return None
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in _parameters(parts) if name not in _OURS]
    query.append(("pooler", Pooler.NONE))
    return read_url(
        urlunsplit(
            parts._replace(netloc=f"{login}{at}{address}", query=urlencode(query, quote_via=quote))
        )
    )
