"""Errors of the PostgreSQL drivers, translated into those of Fairlead."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import psycopg

from fairlead.backends.postgres.sessions import LATE
from fairlead.backends.sql.migrate import CURE
from fairlead.errors import (
    BatchTooLarge,
    ConfigurationError,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
)

_RETRIABLE = ("08", "25P", "40", "53", "57", "58", "25006", "55P03")
"""SQLSTATE prefixes after which another try may work: connection, serialization failure, resources,
shutdown, system, read-only standby, time limits."""

_READ_ONLY = "25006"
_SPILLED = "53400"
"""SQLSTATE of a statement that needs larger temporary files than temp_file_limit allows. Full
replication slots have the same number."""
_NO_SPILL = "raise temp_file_limit or work_mem for this role or database"

_CANCELED_STATE = "57014"
"""SQLSTATE of a statement that took longer than statement_timeout, or that a person canceled. A
smaller batch may end in time."""

_NEVER = ("08P01", "25P01", "25P02")
"""SQLSTATEs with such a prefix that no other try helps, because they are bugs of ours or of a
handler: a protocol violation, a statement that needs a transaction, and a statement in a failed
transaction."""

_CURES = {
    _READ_ONLY: "this server only reads, such as a standby: use a URL with all servers and"
    " target_session_attrs=read-write; or default_transaction_read_only is on for this role or"
    " database: switch it off",
    "25P03": "the server's idle_in_transaction_session_timeout ended a transaction that waited for"
    " longer; raise it for this role or database",
    "25P04": "the server's transaction_timeout ended a transaction; raise it for this role or"
    " database, or set it to 0",
    "53100": "free space on the disk of the server",
    "53300": "lower pool_size in the URL or run fewer workers, or raise max_connections of the"
    " server or the CONNECTION LIMIT of the role or database",
    "55P03": "another session holds the lock for longer than lock_timeout; raise lock_timeout for"
    " this role or database, or end that session",
    "57P05": "the server's idle_session_timeout ended a connection that was not used; raise it for"
    " this role or database",
}
_DENIED = {
    "42501": "docs/how-to/postgresql.md has the grants and policies that each role needs",
    "3F000": "create the schema that the search_path of this role names, and grant USAGE on it",
}
"""Cures for what a role may not do, by SQLSTATE."""

_NO_OPTIONS = (
    "a pooler is in between: leave `options` out of the URL, and set the same by ALTER ROLE ... SET"
)
_REFUSED_SETTINGS = {
    "unsupported startup parameter: options": _NO_OPTIONS,
    "unsupported startup parameter in options": _NO_OPTIONS,  # PgBouncer 1.20 and later
    "unsupported startup parameter": "a pooler is in between: write ?pooler=transaction or"
    " ?pooler=session in the URL",
    "unrecognized configuration parameter": "correct `options` in the URL",
    "invalid value for parameter": "correct `options` in the URL",
    "permission denied to set parameter": "leave it out of `options` in the URL",
}
"""Cures for errors about settings while a connection begins; libpq gives no SQLSTATE then."""

_REFUSED_LOGIN = re.compile(
    "FATAL: .*(does not exist|authentication failed|no pg_hba.conf entry)|no password supplied"
)
"""Refused logins in the errors of libpq, which have no SQLSTATE. If the server writes another
language, it is taken for one that is away."""

_CANCELED = {
    "statement timeout": "a statement took longer than statement_timeout; raise it for this role or"
    " database",
    "lock timeout": "another session holds a lock for longer than lock_timeout; raise it for this"
    " role or database",
}


@contextmanager
def translated(
    location: str,
    connection: psycopg.Connection[Any] | asyncpg.Connection | None,
    drop_idle: Callable[[], None],
) -> Iterator[None]:
    """Translate the drivers' errors.

    Raise StoreUnavailable if another try may work, BatchTooLarge if a smaller batch may,
    StoreRefused if the login is refused, SchemaMismatch for missing tables or columns,
    ConfigurationError for missing rights or a bad setting of the connection. `drop_idle`: closes
    the idle connections, which have the same stale plan or lead to the same standby or dead server.
    """
    try:
        yield
    except (psycopg.Error, asyncpg.PostgresError) as error:
        state = error.sqlstate or ""
        cure = _DENIED.get(state)
        if connection is None and cure is None:
            found = (cure for text, cure in _REFUSED_SETTINGS.items() if text in str(error))
            cure = next(found, None)
        if cure is not None:
            raise ConfigurationError(f"{location}: {_line(error)}; {cure}") from error
        if state in ("42P01", "42703"):
            raise SchemaMismatch(f"{location}: {_line(error)}; {CURE}") from error
        if state == _READ_ONLY:
            # The primary is another server now, or will be: ask for it again.
            drop_idle()
            if isinstance(connection, psycopg.Connection):
                connection.close()
            elif connection is not None and not connection.is_closed():
                connection.terminate()
        is_stale_plan = _raised_in(error) == "RevalidateCachedQuery"
        if is_stale_plan and isinstance(connection, psycopg.Connection):
            connection.close()  # asyncpg drops its own
            drop_idle()
        if state == _SPILLED and _raised_in(error).startswith("FileWrite"):
            raise BatchTooLarge(f"{location}: {_line(error)}; {_NO_SPILL}") from error
        if state == _CANCELED_STATE:
            raise BatchTooLarge(f"{location}: {_with_cure(error, state)}") from error
        if state.startswith(("3D", "28")) or (not state and _REFUSED_LOGIN.search(str(error))):
            raise StoreRefused(f"{location}: {_line(error)}") from error
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not state
        if is_lost and connection is not None:
            drop_idle()
        if is_lost or is_stale_plan or (state.startswith(_RETRIABLE) and state not in _NEVER):
            raise StoreUnavailable(f"{location}: {_with_cure(error, state)}") from error
        raise
    except asyncpg.TargetServerAttributeNotMatched as error:
        raise StoreUnavailable(
            f"{location}: the server is not as target_session_attrs of the URL asks"
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise StoreUnavailable(
            f"{location}: the certificate of the server is not valid here"
            f" ({error.verify_message}); write sslrootcert=FILE, with the certificate of its issuer"
        ) from error
    except (OSError, TimeoutError) as error:
        text = _line(error) if str(error) else "no response in time"
        if isinstance(error, TimeoutError) and connection is not None:
            drop_idle()
            text = LATE
        raise StoreUnavailable(f"{location}: {text}") from error
    except asyncpg.ClientConfigurationError as error:
        raise ConfigurationError(f"{location}: {_line(error)}") from None
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        # InterfaceError can also mean a bug of ours; a lost connection is closed.
        if isinstance(connection, asyncpg.Connection) and connection.is_closed():
            raise StoreUnavailable(f"{location}: the connection was lost") from error
        raise


def _raised_in(error: psycopg.Error | asyncpg.PostgresError) -> str:
    """Return the function of the server that raised the error, or an empty text. Unlike the text of
    the error, it is the same in each language of the server's messages."""
    if isinstance(error, psycopg.Error):
        return error.diag.source_function or ""
    return getattr(error, "server_source_function", None) or ""


def _with_cure(error: BaseException, state: str) -> str:
    """Return the first line of the error's text, and the setting that caused it if one did."""
    text = _line(error)
    cure = _CURES.get(state)
    if cure is None and ("too many" in text or "no more connections allowed" in text):
        cure = _CURES["53300"]  # libpq gives no number for an error before the login
    if "conflict with recovery" in str(error):
        cure = (
            "a standby ended this read: try again, or set hot_standby_feedback=on or a longer"
            " max_standby_streaming_delay there"
        )
    if cure is None and state == _CANCELED_STATE:
        cure = next((_CANCELED[name] for name in _CANCELED if name in text), None)
    return f"{text}; {cure}" if cure else text


def _line(error: BaseException) -> str:
    """Return the first line of the error's text, or the reason of each server that was tried."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    if others and others[0].startswith("Multiple connection attempts failed"):
        first = "; ".join(line.removeprefix("- ") for line in others[1:])
    return re.sub(r"\s+", " ", first)
