"""The URL of a PostgreSQL database: for both drivers, and with parameters of our own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg

from fairlead.errors import ConfigurationError

CONNECT_TIMEOUT = 10
"""Seconds to wait for a connection, unless the URL has connect_timeout."""

POOL_SIZE = 8
"""Connections at most per pool, unless the URL has pool_size."""

_LIBPQ_ONLY = {
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
}
_OURS = ("pooler", "pool_size", "direct")


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
    connect_timeout: int  # seconds
    pool_size: int  # connections at most, per pool
    pooler: Pooler | None
    direct: PostgresUrl | None
    """Way around the pooler, for the connection that listens; None without a parameter `direct`."""


def read_url(url: str) -> PostgresUrl:
    """Read a URL. Raise ConfigurationError, which quotes no secret."""
    try:
        parts = _split(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        given = {name: value for name, value in query if name in _OURS}
        rest = [(name, value) for name, value in query if name not in _OURS]
        clean = parts._replace(scheme="postgresql", query=urlencode(rest) if given else parts.query)
        known = psycopg.conninfo.conninfo_to_dict(clean.geturl())
        timeout = int(known.get("connect_timeout") or CONNECT_TIMEOUT)
    except (ValueError, psycopg.Error):
        # Neither chained nor quoted, because the text may contain a password.
        raise ConfigurationError(
            "cannot read the PostgreSQL URL; write postgresql://user:password@host:port/database"
        ) from None
    return PostgresUrl(
        psycopg=urlunsplit(clean),
        asyncpg=urlunsplit(
            clean._replace(
                query=urlencode([(name, value) for name, value in rest if name not in _LIBPQ_ONLY])
            )
        ),
        location=_location(known),
        connect_timeout=timeout,
        pool_size=_pool_size(given.get("pool_size")),
        pooler=_pooler(given.get("pooler")),
        direct=_direct(url, given.get("direct")),
    )


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in ("postgresql", "postgres"):
        raise ValueError(scheme)
    _ = parts.port  # raises ValueError if the port is not a number
    return parts


def _location(known: dict[str, Any]) -> str:
    host, port = known.get("host") or "local socket", known.get("port") or 5432
    return f"PostgreSQL at {host}:{port}/{known.get('dbname') or ''}"


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
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in _OURS]
    query.append(("pooler", Pooler.NONE))
    return read_url(
        urlunsplit(parts._replace(netloc=f"{login}{at}{address}", query=urlencode(query)))
    )
