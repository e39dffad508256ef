"""Failures of ZooKeeper: those that pass, and those that need a person.

A failure that passes becomes StoreUnavailable, and the caller tries again: a lost connection, an
expired or moved session, a server that only reads because it has lost its leader, throttling, and
every error that is not listed here. ZooKeeper refuses what ConfigurationError names, until a person
changes something.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NotReadOnlyCallError,
    QuotaExceededError,
    SASLException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.tls import explain, find_mismatch

_ASK_SECONDS = 0.5
"""Longest wait for a server to say in which mode it is."""

_SIGNS_OF_NO_QUORUM = (b"Mode: read-only", b"not currently serving requests")

_LOGIN = "check user and password in its URL"

REFUSED: Mapping[type[Exception], str] = {
    NoAuthError: f"{_LOGIN}, and the ACL of the znodes there",
    AuthFailedError: _LOGIN,
    InvalidACLError: _LOGIN,
    SASLException: _LOGIN,
    SessionClosedRequireSaslError: _LOGIN,
    QuotaExceededError: "raise the quota of the folder (setquota)",
    UnimplementedError: "upgrade the server to ZooKeeper 3.5 or later",
}
"""Cures for what ZooKeeper refuses, by error."""

_CURES: Mapping[type[Exception], str] = {
    SessionExpiredError: "its session has expired, and the next call opens another one",
    NotReadOnlyCallError: "the server only reads, because it has lost its leader",
}
"""Explanations of failures that pass, by error."""


def is_refused(error: object) -> bool:
    """Return whether a person must change something before ZooKeeper does what was asked."""
    return isinstance(error, tuple(REFUSED))


@contextmanager
def translated(
    location: str, folder: str, hosts: Sequence[tuple[str, int]], has_tls: bool = False
) -> Iterator[None]:
    """Raise StoreUnavailable or ConfigurationError in place of kazoo's errors. `location`: the
    servers. `folder`: the path of the znodes in use. `hosts`: the servers again, which may be asked
    why they serve no client. `has_tls`: whether we use TLS."""
    try:
        yield
    except tuple(REFUSED) as error:
        raise ConfigurationError(
            f"{location} refused access to {folder} ({_name(error)}): {_find(REFUSED, error)}"
        ) from error
    except (KazooException, KazooTimeoutError) as error:
        cure = _find(_CURES, error)
        if isinstance(error, KazooTimeoutError | ConnectionLoss):
            if mismatch := find_mismatch(hosts, has_tls, b"srvr"):
                raise ConfigurationError(f"{location} refused: {explain(mismatch)}") from error
            cure = (None if has_tls else _no_quorum(hosts)) or cure
        why = f": {cure}" if cure else ""
        raise StoreUnavailable(f"{location} does not respond ({_name(error)}{why})") from error


def _find(cures: Mapping[type[Exception], str], error: Exception) -> str | None:
    return next((cure for kind, cure in cures.items() if isinstance(error, kind)), None)


def _no_quorum(hosts: Sequence[tuple[str, int]]) -> str | None:
    """Return the explanation if a server has no quorum, which a client sees as a lost connection;
    None if no server says so."""
    for host in hosts:
        with suppress(OSError), socket.create_connection(host, _ASK_SECONDS) as connection:
            connection.settimeout(_ASK_SECONDS)
            connection.sendall(b"srvr")
            response = connection.recv(4096)
            if any(sign in response for sign in _SIGNS_OF_NO_QUORUM):
                return "it has no quorum: start the other servers"
    return None


def _name(error: Exception) -> str:
    return type(error).__name__
