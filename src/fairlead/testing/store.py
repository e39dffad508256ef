"""The database of one test: empty at its beginning, and never one that has other people's tasks."""

from __future__ import annotations

from importlib import resources

from fairlead.connector import Connector
from fairlead.errors import ConfigurationError, FairleadError
from fairlead.ports.statements import Statement, Steps
from fairlead.urls import shown_url, split_url


def _statements(file: str) -> list[str]:
    text = resources.files("fairlead.testing").joinpath(file).read_text(encoding="utf-8")
    return [statement.strip() for statement in text.split(";") if statement.strip()]


_USED, *_EMPTYING = _statements("empty.sql")

_own: set[str] = set()
"""URLs of databases that a kit of this process has found or made empty."""


def prepare(connector: Connector) -> None:
    """Make the tables, and empty them. Raise ConfigurationError, before anything is changed, for a
    database that has tasks or history and whose name does not say that it is for tests;
    NotSupported for a store without SQL."""
    store, url = connector.connections.store.as_sql(), connector.settings.url
    name = split_url(url).path.rpartition("/")[2]
    try:
        is_used = store.database.read_now(_is_used())
    except FairleadError:  # no tables yet; an outage shows at the next step
        is_used = None
    if is_used and url not in _own and "test" not in name.lower():
        raise ConfigurationError(
            f"{shown_url(url)} has tasks, and a test would delete them: give the kit a database"
            " of its own, whose name has `test` in it"
        )
    connector.migrate()
    if is_used is not None:
        store.database.run(_emptied(store.database.dialect))
    _own.add(url)


def _is_used() -> Steps[bool]:
    return bool((yield Statement(_USED))[0][0])


def _emptied(dialect: str) -> Steps[None]:
    for statement in (*_EMPTYING, *_statements(f"empty.{dialect}.sql")):
        yield Statement(statement)
