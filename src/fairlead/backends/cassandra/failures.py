"""Failures of Cassandra: those that pass, and those that need a person.

A failure that passes becomes StoreUnavailable, and the caller tries again: too few replicas, late
responses, an overloaded or starting node, a schema that the nodes do not agree on, the network. A
statement above the limits of the server becomes BatchTooLarge, a missing table SchemaMismatch, a
refused login or right ConfigurationError. Any other refused request is a bug and keeps its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    RequestExecutionException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage, OverloadedErrorMessage
from cassandra.query import TraceUnavailable

from fairlead.errors import (
    BatchTooLarge,
    ConfigurationError,
    FairleadError,
    SchemaMismatch,
    StoreUnavailable,
)
from fairlead.tls import explain

_OUTAGES = (
    RequestExecutionException,
    OperationTimedOut,
    NoHostAvailable,
    NoConnectionsAvailable,
    UnresolvableContactPoints,
    ConnectionException,
    ErrorMessage,
    TraceUnavailable,
    OSError,
)
_TOO_LARGE = re.compile(r"too large|oversized mutation|exceeds allowed maximum", re.IGNORECASE)
"""Texts of the errors about a request beyond a limit of the servers."""
_MISSING = re.compile(r"unconfigured table|undefined column|does(n't| not) exist", re.IGNORECASE)


def translate(error: Exception, location: str, keyspace: str) -> FairleadError | None:
    """Return Fairlead's error for an error of the driver; None for a bug. `location`: the
    servers."""
    if _TOO_LARGE.search(str(error)) is not None:
        return BatchTooLarge(
            f"{location}: {error}; native_transport_max_frame_size, max_mutation_size and"
            " batch_size_fail_threshold in cassandra.yaml are the limits"
        )
    if isinstance(error, InvalidRequest):
        if _MISSING.search(str(error)) is None:
            return None
        return SchemaMismatch(
            f"Cassandra's keyspace {keyspace}, or one of its tables or columns, is missing: run"
            " `fairlead migrate`"
        )
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Unauthorized):
        cure = f"grant SELECT and MODIFY on the keyspace {keyspace} to the user of the URL"
        return ConfigurationError(f"{location} refused: {text}; {cure}")
    # One host that is down may accept us later, so only the refusals of all are one.
    causes = _causes(error)
    cures = [_cure_of_refusal(cause) for cause in causes]
    if cures and all(cures):
        return ConfigurationError(f"{location} refused: {_text(causes[0])}; {cures[0]}")
    if isinstance(error, _OUTAGES):
        return StoreUnavailable(f"{location}: {text}{_cure(error)}")
    return None


@contextmanager
def translated(location: str, keyspace: str) -> Iterator[None]:
    """Raise Fairlead's errors in place of the driver's."""
    try:
        yield
    except Exception as error:
        found = translate(error, location, keyspace)
        if found is None:
            raise
        raise found from error


def _cure_of_refusal(cause: object) -> str | None:
    """Return what a person must change before a host accepts us; None if it may do so later."""
    if isinstance(cause, AuthenticationFailed):
        return "check user and password in its URL"
    return explain(str(cause)) if isinstance(cause, OSError | ConnectionException) else None


def _text(cause: object) -> str:
    """Return the text of an error, without the name of its class and its number."""
    return (isinstance(cause, OSError) and cause.strerror) or str(cause)


def _causes(error: Exception) -> list[object]:
    """Return the errors of the hosts that the driver has tried one after the other; the error
    itself if it is that of one host."""
    return list(error.errors.values()) if isinstance(error, NoHostAvailable) else [error]


def _cure(error: Exception) -> str:
    for cause in _causes(error):
        if isinstance(cause, Unavailable) and cause.required_replicas is not None:
            level = ConsistencyLevel.value_to_name.get(cause.consistency, cause.consistency)
            needed, alive = cause.required_replicas, cause.alive_replicas
            up = "1 is" if alive == 1 else f"{alive} are"
            return f"; {level} needs {needed} replicas and {up} up: start the nodes that are down"
        if isinstance(cause, OverloadedErrorMessage):
            return "; the node has more requests than it can handle"
    return ""
