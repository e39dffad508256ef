"""The database of one test: empty at its beginning, and never one that has other people's tasks."""

from __future__ import annotations

import re
from importlib import resources

from fairlead.connector import Connector
from fairlead.errors import ConfigurationError, FairleadError
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import SqlDatabase, Statement, Steps
from fairlead.urls import shown_url, split_url


def _statements(file: str) -> list[str]:
    text = resources.files("fairlead.testing").joinpath(file).read_text(encoding="utf-8")
    return [statement.strip() for statement in text.split(";") if statement.strip()]


_COMMON = _statements("empty.sql")
_USED = [statement for statement in _COMMON if "SELECT EXISTS" in statement]
_EMPTYING = [statement for statement in _COMMON if "SELECT EXISTS" not in statement]

_FOR_TESTS = re.compile(r"(?<![a-z])(py)?test(s|ing)?(?![a-z])", re.IGNORECASE)
"""The word `test` in the name of a database; `latest` and `contest` do not have it."""

_own: set[str] = set()
"""URLs of databases that a kit of this process has found or made empty."""


def is_named_for_tests(url: str) -> bool:
    """Return whether the name of the database at `url` has the word `test`."""
    return _FOR_TESTS.search(split_url(url).path.rpartition("/")[2]) is not None


def prepare(connector: Connector) -> None:
    """Make the tables, and empty them. Raise ConfigurationError, before anything is deleted, for a
    database that somebody has used and whose name does not say that it is for tests; NotSupported
    for a store without SQL."""
    store, url = connector.connections.sql_store, connector.settings.url
    database = store.database
    is_safe = url in _own or is_named_for_tests(url)
    is_used = False if is_safe else _is_used(database)
    if not is_used:
        connector.migrate()
        if is_used is None:  # no tables before, or an outage
            is_used = _is_used(database)
    if is_used is not False:
        raise ConfigurationError(
            f"{shown_url(url)} has tasks or a history of others, and a test would delete them: give"
            " the kit a database of its own, whose name has the word `test`, as shop_test"
        )
    database.run(_emptied(store))
    _own.add(url)


def _is_used(database: SqlDatabase) -> bool | None:
    """Return whether a table has rows; None if none is known to have any and some cannot be
    read."""
    found: bool | None = False
    for statement in _USED:
        try:
            if database.read_now(_has_rows(statement)):
                return True
        except FairleadError:
            found = None
    return found


def _has_rows(statement: str) -> Steps[bool]:
    return bool((yield Statement(statement))[0][0])


def _emptied(store: SqlStore) -> Steps[None]:
    statements = [*_EMPTYING, *_statements(f"empty.{store.database.dialect}.sql")]
    for statement in statements:
        yield Statement(statement)
