"""The failures of Redis, in one place: the states that pass, the server that is no longer the
master, the refusals that a person must cure, and damaged keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from redis import exceptions
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.sentinel import MasterNotFoundError

from fairlead.errors import ConfigurationError, FairleadError, StoreUnavailable, WriteRefused
from fairlead.sharded.clients import address_of, has_tls, server_of
from fairlead.sharded.errors import InvalidMessage, QueueDamaged
from fairlead.tls import Cures, explain, find_mismatch

_TRANSIENT: Mapping[str, str] = {
    "NOREPLICAS": "Redis has too few replicas to accept writes; start its replicas, or lower"
    " min-replicas-to-write",
    "MISCONF": "Redis cannot write to its disk and refuses writes; free its disk, or make its"
    " folder writable",
    "BUSY": "Redis is busy with a long script; wait for its end, or end it with SCRIPT KILL",
    "LOADING": "Redis is loading its data after a start; wait for the end",
    "OOM": "Redis is full; raise its maxmemory, or let workers empty the queues",
    "CLUSTERDOWN": "the Redis cluster is down; start the missing servers",
    "TRYAGAIN": "the slot of the queue moves to another server of the Redis cluster; wait for the"
    " end of the move",
}
"""States that pass: cause and cure, by the code of Redis' error."""

_MOVED: Mapping[str, str] = {
    "READONLY": "this Redis server is a replica and refuses writes; let the name in the URL lead to"
    " the master (READONLY)",
    "MASTERDOWN": "this Redis server is a replica that has lost its master; start the master, or"
    " let the name in the URL lead to it (MASTERDOWN)",
}
"""States of a server that is not the master: cause and cure, by the code of Redis' error."""

_REFUSED: Mapping[str, str] = {
    "NOAUTH": "Redis refused the login: check user and password",
    "WRONGPASS": "Redis refused the login: check user and password",
    "NOPERM": "the user has no permission at Redis for a command or key; extend its ACL",
    "DENIED": "Redis runs in protected mode and refuses other machines; set a password",
}
"""Refusals that waiting does not cure: cause and cure, by the code of Redis' error."""

_REFUSED_TEXTS: Mapping[str, str] = {
    "ACL failure in script": _REFUSED["NOPERM"],
    "user executing the script can't": _REFUSED["NOPERM"],
    "invalid bulk length": "Redis takes no message of this size; raise its proto-max-bulk-len",
    "unknown command": "Redis is too old; use Redis 7 or Valkey",
    "DB index is out of range": "Redis has no database of this number; check the end of the URL",
}
"""Refusals without a code of their own, by a part of the error's text."""

_CLUSTER = (
    "this Redis is a node of a cluster; begin the URL with redis+cluster:// instead of redis://, or"
    " give ShardedQueue a client of class RedisCluster"
)
_NO_CLUSTER = (
    "this Redis is no cluster; begin the URL with redis:// instead of redis+cluster://, or give"
    " ShardedQueue a client of class Redis"
)
_NO_SERVER = (
    "no server of the Redis cluster responds; start the servers, or check the hosts in the URL"
)
_NO_MASTER = (
    "no Sentinel names a master of this name now; wait for the end of the election, or check the"
    " hosts and the name in the URL"
)
_SENTINEL_LOGIN = (
    "Sentinel refused the login: check sentinel_username and sentinel_password in the URL"
)
_FULL_POOL = (
    "every connection of the client is in use (a waiting reader holds one): give the client"
    " a greater max_connections"
)
_CURES_OF_TLS = Cures(
    authority="ssl_ca_certs=FILE",
    own_certificate="ssl_certfile=FILE and ssl_keyfile=FILE",
    any_name="ssl_check_hostname=false",
    no_tls="begin the URL with redis instead of rediss",
    with_tls="rediss instead of redis at the beginning of the URL",
)
_NO_HANDSHAKE = re.compile("closed|reset|EOF|timeout connecting|timed out", re.IGNORECASE)
"""Texts of errors of a server that uses TLS and whose client does not, or the other way round."""

_IS_CLOSED = re.compile("closed|reset|EOF|broken pipe", re.IGNORECASE)
"""Texts of errors of a connection that the server has closed."""

_CLOSED = (
    "Redis has closed a connection with TLS; trying again may work; if it asks for our certificate,"
    f" write {_CURES_OF_TLS.own_certificate}"
)
_OF_CLUSTERS = (exceptions.ClusterError, exceptions.RedisClusterException)
_DAMAGED = "FAIRLEAD_DAMAGED "
_DEMOTED = "instance state changed"
"""Part of the error of a wait on a server that has become a replica."""


_DEMOTED_OF_SENTINEL = "previous master is now a slave"
"""Part of the text by which redis-py replaces READONLY if it has asked Sentinel for the server."""


class ServerMoved(StoreUnavailable):
    """Raised if the server is a replica; the connections to it must be dropped, since its
    name may lead to the new master. The server has not executed the command."""


@contextmanager
def translated_errors(redis: Any, queue: str) -> Iterator[None]:
    """Turn errors of redis-py into ConfigurationError, StoreUnavailable, ServerMoved,
    InvalidMessage or QueueDamaged. The first three name host and port of the client's server; no
    text has a password."""
    try:
        yield
    except (exceptions.RedisError, exceptions.RedisClusterException) as error:
        found = _mismatch_of(redis, error) or translated(error, queue, has_tls(redis))
        if isinstance(found, ConfigurationError | StoreUnavailable):
            found = type(found)(f"{address_of(redis)}: {found}")
        raise found from error


def _mismatch_of(redis: Any, error: Exception) -> FairleadError | None:
    """Return the refusal if the server asks for TLS and the client does not use it, or the other
    way round; None for any other error, and for a client of several servers."""
    if not isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError):
        return None
    server = server_of(redis)
    if server is None or _NO_HANDSHAKE.search(str(error)) is None:
        return None
    failure = find_mismatch([server], has_tls(redis), b"PING\r\n")
    return None if failure is None else ConfigurationError(str(explain(failure, _CURES_OF_TLS)))


def translated(error: Exception, queue: str, uses_tls: bool = False) -> FairleadError:
    """Return the error of redis-py as Fairlead's own. An error that is not known passes as
    WriteRefused with its text, since servers have states that this module does not know."""
    if isinstance(error, exceptions.MaxConnectionsError):
        return ConfigurationError(_FULL_POOL)
    if (found := _of_discovery(error)) is not None:
        return found
    code, text = code_of(error), str(error)
    if is_demotion(error):
        return ServerMoved(_MOVED.get(code, _MOVED["READONLY"]))
    if code in _TRANSIENT:
        return StoreUnavailable(f"{_TRANSIENT[code]} ({code})")
    if isinstance(error, exceptions.AuthenticationError):
        return ConfigurationError(_REFUSED["NOAUTH"])
    if code in _REFUSED:
        return ConfigurationError(f"{_REFUSED[code]} ({code}: {_short(text)})")
    if code in ("MOVED", "ASK"):
        return ConfigurationError(_CLUSTER)
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError):
        if (refusal := explain(text, _CURES_OF_TLS)) is not None:
            return ConfigurationError(f"no connection with TLS to Redis: {refusal}")
        if uses_tls and _IS_CLOSED.search(text):
            # With TLS 1.3, the server checks our certificate after our handshake has ended. It
            # sends an alert and closes: who writes before reading may see the end only.
            return StoreUnavailable(_CLOSED)
        return StoreUnavailable(
            f"Redis does not respond ({type(error).__name__}); trying again may work"
        )
    if _DAMAGED in text:
        return QueueDamaged(f"queue {queue}: {text.partition(_DAMAGED)[2]}")
    if "WRONGTYPE" in text:
        return QueueDamaged(f"queue {queue}: one of its keys holds a foreign value ({text})")
    if "non local key" in text or isinstance(error, _OF_CLUSTERS):
        return StoreUnavailable(f"{_TRANSIENT['TRYAGAIN']} ({_short(text)})")
    if isinstance(error, exceptions.DataError):
        return InvalidMessage(text)
    for part, refusal in _REFUSED_TEXTS.items():
        if part in text:
            return ConfigurationError(f"{refusal} ({_short(text)})")
    return WriteRefused(f"Redis refused a command of queue {queue} ({_short(text)})")


def _of_discovery(error: Exception) -> FairleadError | None:
    """Return the failure to find the server of a key or the master; None for any other error."""
    text = str(error)
    if isinstance(error, MasterNotFoundError | AsyncMasterNotFoundError):
        if "AuthenticationError" in text or "AuthenticationWrongNumberOfArgs" in text:
            return ConfigurationError(_SENTINEL_LOGIN)
        return StoreUnavailable(f"{_NO_MASTER} ({_short(text.partition(' : ')[0])})")
    if not isinstance(error, exceptions.RedisClusterException):
        return None
    if "not covered" in text:
        return StoreUnavailable(f"{_TRANSIENT['CLUSTERDOWN']} ({_short(text)})")
    cause = error.__cause__ or error  # the failure of the last server that was asked
    if "Cluster mode is not enabled" in str(cause):
        refusal = cause.__context__
        return (
            translated(refusal, "")
            if isinstance(refusal, exceptions.ResponseError) and code_of(refusal) in _REFUSED
            else ConfigurationError(_NO_CLUSTER)
        )
    if "cannot be connected" not in text:
        return None
    return (
        ConfigurationError(_REFUSED["NOAUTH"])
        if isinstance(cause, exceptions.AuthenticationError)
        else StoreUnavailable(_NO_SERVER)
    )


def is_demotion(error: Exception) -> bool:
    """Return whether the server has sent this error because it is a replica."""
    code = code_of(error)
    is_told = code in _MOVED or (code == "UNBLOCKED" and _DEMOTED in str(error))
    return is_told or _DEMOTED_OF_SENTINEL in str(error)


def code_of(error: Exception) -> str:
    """Return the code of an error that Redis has sent, such as MISCONF; "" for any other error."""
    known = getattr(error, "status_code", None)
    if known:
        return str(known)
    word = str(error).partition(" ")[0]
    return word if word.isupper() and isinstance(error, exceptions.ResponseError) else ""


def _short(text: str) -> str:
    """Return the text on one line, at most 200 characters."""
    return " ".join(text.split())[:200]
