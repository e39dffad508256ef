"""Failures of ZooKeeper: those that pass, and those that need a person.

A failure that passes becomes StoreUnavailable, and the caller tries again: a lost connection, an
expired or moved session, a server that only reads because it has lost its leader, throttling, and
every error that is not listed here. ZooKeeper refuses what ConfigurationError names, until a person
changes something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kazoo.exceptions import (
    AuthFailedError,
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
def translated(location: str, folder: str) -> Iterator[None]:
    """Raise StoreUnavailable or ConfigurationError in place of kazoo's errors. `location`: the
    servers. `folder`: the path of the znodes in use."""
    try:
        yield
    except tuple(REFUSED) as error:
        raise ConfigurationError(
            f"{location} refused access to {folder} ({_name(error)}): {_find(REFUSED, error)}"
        ) from error
    except (KazooException, KazooTimeoutError) as error:
        why = f": {cure}" if (cure := _find(_CURES, error)) else ""
        raise StoreUnavailable(f"{location} does not respond ({_name(error)}{why})") from error


def _find(cures: Mapping[type[Exception], str], error: Exception) -> str | None:
    return next((cure for kind, cure in cures.items() if isinstance(error, kind)), None)


def _name(error: Exception) -> str:
    return type(error).__name__
