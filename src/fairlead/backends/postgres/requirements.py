"""Requirements on a PostgreSQL server, checked by what it reports when a connection begins."""

from __future__ import annotations

from fairlead.errors import ConfigurationError

OLDEST_VERSION = 14


def check_server(location: str, version: int, encoding: str | None) -> None:
    """Raise ConfigurationError if the major version of the server is too old, or the encoding of
    the database is not UTF-8. The encoding is None if a pooler hides it."""
    if version < OLDEST_VERSION:
        raise ConfigurationError(
            f"{location} runs PostgreSQL {version}, and Fairlead needs {OLDEST_VERSION} or newer;"
            " upgrade the server"
        )
    if encoding not in ("UTF8", None):
        raise ConfigurationError(
            f"{location} has the encoding {encoding}, and Fairlead needs UTF8; make another"
            " database: CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0"
        )
