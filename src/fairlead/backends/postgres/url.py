"""The URL of a PostgreSQL database, read once for both drivers, with parameters of our own.

libpq reads the URL and the environment (PGHOST and others). asyncpg gets what libpq found, so that
it reads neither in a way of its own.
"""

from __future__ import annotations

import os.path
import random
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult

import psycopg

from fairlead.errors import ConfigurationError
from fairlead.urls import PERCENT_CODES, hosts_of, parameters_of, query_of, shown_url, split_url

CONNECT_TIMEOUT = 10
"""Seconds to wait for a connection, unless the URL has connect_timeout."""

RESPONSE_TIMEOUT = 10.0
"""Seconds to wait for the response to a statement, unless the URL has response_timeout."""

POOL_SIZE = 8
"""Connections at most per pool, unless the URL has pool_size."""

_OURS = ("pooler", "pool_size", "direct", "response_timeout")
_PSYCOPG_ONLY = (
    "application_name",
    "client_encoding",
    "connect_timeout",
    "fallback_application_name",
    "gssdelegation",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "sslcompression",
    "sslsni",
    "tcp_user_timeout",
)
"""Parameters that asyncpg lacks, and that change nothing which a user relies on."""

_ASYNCPG = (
    "dbname",
    "gsslib",
    "krbsrvname",
    "options",
    "passfile",
    "password",
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
"""Parameters that asyncpg reads; it would send all others to the server as settings."""

_OBEYED_BY_US = ("channel_binding", "host", "load_balance_hosts", "port", "service")
"""Parameters that asyncpg does not read from its URL, because we obey them for it."""

_VALUES = {
    "channel_binding": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
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
_WEAK = ("disable", "prefer", "allow")
"""Values of parameters for security that ask for nothing."""


_CURES = {
    "connection_limit": "write pool_size=5",
    "currentSchema": "write options=-csearch_path%3DNAME",
    "pgbouncer": "write pooler=transaction",
    "pool_timeout": "leave it out",
    "search_path": "write options=-csearch_path%3DNAME",
    "service": "set PGSERVICE, which both drivers obey",
    "schema": "write options=-csearch_path%3DNAME",
    "ssl": "write sslmode=require",
    "supa": "leave it out",
    "uselibpqcompat": "leave it out",
}
"""Parameters that providers hand out for other libraries."""

_SETTING = "settings of the server are written as options=-cNAME%3DVALUE"
_PLAIN_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f:.]+(%[\w.-]+)?|/.*", re.DOTALL)
"""Names, addresses and socket folders. Anything else may be a user with a password."""

_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
"""Files of the certificates that operating systems trust: Debian, Red Hat, Alpine and macOS,
SUSE."""


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

    psycopg: str = field(repr=False)
    asyncpg: str = field(repr=False)
    """URL without hosts and ports, which `tries` has."""
    location: str
    """Name of the database for messages, without secrets."""
    servers: tuple[tuple[str, int], ...]
    """Host and port of each server; an empty host means the socket of this machine."""
    target: str | None
    """Kind of the server to find: a value of target_session_attrs."""
    is_random: bool
    """Whether each connection tries the servers in another order."""
    connect_timeout: int  # seconds, for each server; 0: without limit
    response_timeout: float | None  # seconds, for each statement of ours; None: without limit
    pool_size: int  # connections at most, per pool
    pooler: Pooler | None
    direct: PostgresUrl | None
    """Way around the pooler, for the connection that listens; None without a parameter `direct`."""

    def tries(self) -> list[dict[str, Any]]:
        """Return the arguments of asyncpg for each try. A standby that is only preferred is tried
        before all servers are."""
        servers = list(self.servers)
        if self.is_random:
            random.shuffle(servers)
        found = [{"host": host or None, "port": port} for host, port in servers]
        if len(found) == 1:
            return found  # asyncpg obeys `target` itself
        targets = ["standby", "any"] if self.target == "prefer-standby" else [self.target]
        return [each | {"target_session_attrs": target} for target in targets for each in found]


def read_url(url: str) -> PostgresUrl:
    """Read a URL. Raise ConfigurationError, which quotes no secret."""
    parts, where = split_url(url), shown_url(url)
    # An "@" in the path is one of a URL with too many slashes.
    if parts.scheme not in ("postgresql", "postgres") or "@" in parts.path:
        raise _unreadable(where)
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = parameters_of(
        where,
        parts,
        known - {"service"} | {*_OURS},
        is_known=lambda name: name == "ssl",
        cures=_CURES,
        otherwise=_SETTING,
    )
    rest = {name: value for name, value in given.items() if name not in _OURS}
    if "ssl" in rest:  # as Java and Node write it
        if rest.pop("ssl") != "true":
            raise ConfigurationError(f"{where}: unknown value of ssl; {_CURES['ssl']}")
        rest.setdefault("sslmode", "require")
    read = _read(where, parts, rest)
    servers = _servers(where, read)
    if len(servers) > 1 and "target_session_attrs" not in read:
        # A standby would accept the connection, and then refuse every write.
        rest["target_session_attrs"] = read["target_session_attrs"] = "read-write"
    _check_values(where, read)
    if read.get("sslrootcert") == "system":
        rest |= _verified_by_system(where, read)
        read |= rest
    of_asyncpg = {name: value for name, value in read.items() if name in _ASYNCPG and value}
    if read.get("channel_binding") == "require":
        of_asyncpg |= _verified_instead_of_bound(where, servers, read)
    return PostgresUrl(
        psycopg=_joined(parts, rest),
        asyncpg=f"postgresql://?{query_of(of_asyncpg)}",
        location=_location(servers, read),
        servers=servers,
        target=read.get("target_session_attrs"),
        is_random=read.get("load_balance_hosts") == "random",
        connect_timeout=int(_timeout(where, "connect_timeout", read, CONNECT_TIMEOUT)),
        response_timeout=_timeout(where, "response_timeout", given, RESPONSE_TIMEOUT) or None,
        pool_size=_pool_size(where, given.get("pool_size")),
        pooler=_pooler(where, given.get("pooler")),
        direct=_direct(where, parts, given),
    )


def _unreadable(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: cannot read the PostgreSQL URL; write"
        " postgresql://user:password@host:port/database, or"
        f" user:password@host1:port1,host2:port2, and {PERCENT_CODES}"
    )


def _read(where: str, parts: SplitResult, rest: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters as libpq reads them in the URL and the environment."""
    found = {
        option.keyword.decode(): option.val.decode()
        for option in psycopg.pq.Conninfo.get_defaults()
        if option.val is not None and option.val != option.compiled
    }
    try:
        in_url = psycopg.conninfo.conninfo_to_dict(_joined(parts, rest))
    except psycopg.Error:
        # Neither chained nor quoted, because the text may contain a password.
        raise _unreadable(where) from None
    return found | {name: str(value) for name, value in in_url.items()}


def _check_values(where: str, read: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a value that libpq does not know, or that only one driver
    obeys."""
    for name, value in read.items():
        if value not in _VALUES.get(name, (value,)):
            raise ConfigurationError(f"{where}: {name}={value}: write {', '.join(_VALUES[name])}")
        if name in _ASYNCPG or name in _PSYCOPG_ONLY or name in _OBEYED_BY_US or value in _WEAK:
            continue
        raise ConfigurationError(
            f"{where}: {name}: asyncpg, which connects event loops, cannot obey it; leave it out"
            f" of the URL and of the environment ({_variable(name)})"
        )


def _variable(name: str) -> str:
    """Return the variable of the environment in which libpq finds a parameter."""
    options = psycopg.pq.Conninfo.get_defaults()
    variables = {option.keyword.decode(): option.envvar for option in options}
    return (variables.get(name) or b"no variable").decode()


def _joined(parts: SplitResult, rest: Mapping[str, str]) -> str:
    return f"postgresql://{parts.netloc}{parts.path}{'?' if rest else ''}{query_of(rest)}"


def _servers(where: str, read: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return host and port of each server. Raise ConfigurationError."""
    hosts = read.get("host", "").split(",")
    try:
        ports = [int(port or 5432) for port in read.get("port", "").split(",")]
    except ValueError:
        ports = [0]
    if len(ports) == 1:
        ports *= len(hosts)
    is_plain = all(not host or _PLAIN_HOST.fullmatch(host) for host in hosts)
    if not is_plain or len(ports) != len(hosts) or not all(0 < port < 65536 for port in ports):
        raise _unreadable(where)
    return tuple(zip(hosts, ports, strict=True))


def _verified_by_system(where: str, read: Mapping[str, str]) -> dict[str, str]:
    """Return parameters that verify the server with the certificates of the system. Neither driver
    can find them everywhere. Raise ConfigurationError."""
    if read.get("sslmode", "verify-full") != "verify-full":
        raise ConfigurationError(f"{where}: sslrootcert=system needs sslmode=verify-full")
    return {"sslmode": "verify-full", "sslrootcert": _system_certificates(where)}


def _verified_instead_of_bound(
    where: str, servers: tuple[tuple[str, int], ...], read: Mapping[str, str]
) -> dict[str, str]:
    """Return parameters that let asyncpg verify the certificate of the server. A server in between,
    which channel_binding=require reveals to psycopg, has no valid one. Raise ConfigurationError."""
    mode = read.get("sslmode", "prefer")
    if mode == "disable" or any(host[:1] in ("", "/") for host, _ in servers):
        raise ConfigurationError(
            f"{where}: channel_binding=require needs TLS, so a host and no sslmode=disable"
        )
    root = read.get("sslrootcert") or _system_certificates(where)
    return {
        "sslmode": mode if mode.startswith("verify-") else "verify-full",
        "sslrootcert": root,
    }


def _system_certificates(where: str) -> str:
    """Return the path of the certificates that the system trusts. Raise ConfigurationError."""
    named = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
    found = next((path for path in named if path is not None and os.path.isfile(path)), None)
    if found is None:
        raise ConfigurationError(
            f"{where}: this system has no file of certificates that asyncpg can use; write the path"
            " of one as sslrootcert, or set SSL_CERT_FILE"
        )
    return found


def _location(servers: tuple[tuple[str, int], ...], read: Mapping[str, str]) -> str:
    names = ",".join(
        f"[{host}]:{port}" if ":" in host and host[0] != "/" else f"{host or 'local socket'}:{port}"
        for host, port in servers
    )
    database = read.get("dbname", "")
    return f"PostgreSQL at {names}/{database if re.fullmatch('[ -9;-?A-~]*', database) else '...'}"


def _timeout(where: str, name: str, given: Mapping[str, str], default: float) -> float:
    value = given.get(name) or f"{default}"
    if re.fullmatch(r"-?\d{1,9}(\.\d{1,9})?", value):
        return max(float(value), 0)
    raise ConfigurationError(
        f"{where}: {name}={value}: write a number of seconds, or 0 for no limit"
    )


def _pool_size(where: str, value: str | None) -> int:
    if value is None:
        return POOL_SIZE
    if not value.isdecimal() or not 1 <= int(value) <= 1000:
        raise ConfigurationError(f"{where}: pool_size={value}: write a number from 1 to 1000")
    return int(value)


def _pooler(where: str, value: str | None) -> Pooler | None:
    if value is None:
        return None
    if value not in list(Pooler):
        raise ConfigurationError(f"{where}: pooler={value}: write {', '.join(Pooler)}")
    return Pooler(value)


def _direct(where: str, parts: SplitResult, given: Mapping[str, str]) -> PostgresUrl | None:
    """Return the URL with the host and port of `direct`, and without a pooler."""
    if "direct" not in given:
        return None
    (host, port), *others = hosts_of(f"{where}: direct", given["direct"], 5432)
    if others:
        raise ConfigurationError(f"{where}: direct names one host")
    login, at, _ = parts.netloc.rpartition("@")
    query = {name: value for name, value in given.items() if name not in _OURS}
    query |= {"host": host, "port": str(port), "pooler": Pooler.NONE.value}
    return read_url(_joined(parts._replace(netloc=f"{login}{at}"), query))
