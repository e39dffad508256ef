"""Transactions of the user: after a commit, send the notifications of the tasks submitted in the
transaction; after a rollback, send none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fairlead.backends.sql.drivers import is_async
from fairlead.errors import ConfigurationError
from fairlead.ports.notification import Notification

Waiting = dict[int, list[Notification | None]]
"""Notifications that wait for the commit of an open transaction, by the `id()` of its
connection."""


class Transaction:
    """A transaction on a connection of sqlite3 or psycopg (`with`), or of aiosqlite, asyncpg or
    psycopg (`async with`)."""

    def __init__(
        self, connection: Any, waiting: Waiting, announce: Callable[[Notification | None], None]
    ) -> None:
        """Raises ConfigurationError for a class."""
        if isinstance(connection, type):
            raise ConfigurationError("app.transaction() takes an open connection, not a class")
        self._connection = connection
        self._waiting = waiting
        self._announce = announce
        self._inner: Any = None
        self._notifications: list[Notification | None] = []
        self._outer: list[Notification | None] | None = None
        """Notifications of the `App.transaction` around this one."""
        self._is_savepoint = False

    def __enter__(self) -> Any:
        if is_async(self._connection):
            raise ConfigurationError("this connection is asynchronous: use `async with` with it")
        self._inner = self._begin(_sqlite3, "sqlite3 or psycopg")
        self._inner.__enter__()
        self._waiting[id(self._connection)] = self._notifications
        return self._connection

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._end()
        self._inner.__exit__(kind, error, trace)
        self._announce_all(error)

    async def __aenter__(self) -> Any:
        if not is_async(self._connection):
            raise ConfigurationError("this connection is synchronous: use `with` with it")
        self._inner = self._begin(_aiosqlite, "aiosqlite, asyncpg or psycopg")
        await self._inner.__aenter__()
        self._waiting[id(self._connection)] = self._notifications
        return self._connection

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._end()
        await self._inner.__aexit__(kind, error, trace)
        self._announce_all(error)

    def _begin(self, on_sqlite: Callable[[Any], Any], known: str) -> Any:
        """Return a transaction: that of `on_sqlite` for SQLite, else the connection's own, which is
        a savepoint if one is open. Raise ConfigurationError for other connections than the `known`
        ones."""
        connection = self._connection
        if _is_of_sqlite(connection):
            return on_sqlite(connection)
        if not hasattr(connection, "transaction"):
            raise ConfigurationError(
                f"app.transaction() takes a connection of {known}, not {type(connection).__name__}"
            )
        self._is_savepoint = _is_in_transaction(connection)
        self._outer = self._waiting.get(id(connection))
        return connection.transaction()

    def _end(self) -> None:
        del self._waiting[id(self._connection)]
        if self._outer is not None:
            self._waiting[id(self._connection)] = self._outer

    def _announce_all(self, error: BaseException | None) -> None:
        if error is not None:
            return
        if self._outer is not None:
            self._outer += self._notifications
        elif not self._is_savepoint:  # nobody reports the commit of the user's own transaction
            for notification in self._notifications:
                self._announce(notification)


@contextmanager
def _sqlite3(connection: Any) -> Iterator[None]:
    if connection.in_transaction:
        raise ConfigurationError(
            "this connection already has an open transaction: commit it, or submit without"
            " app.transaction()"
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.commit()
    finally:
        connection.rollback()  # also after a commit that a constraint refused


@asynccontextmanager
async def _aiosqlite(connection: Any) -> AsyncIterator[None]:
    await connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        await connection.commit()
    finally:
        await connection.rollback()


def _is_of_sqlite(connection: Any) -> bool:
    # A session of SQLAlchemy has a method of this name.
    return isinstance(getattr(connection, "in_transaction", None), bool)


def _is_in_transaction(connection: Any) -> bool:
    """Return whether a transaction is open on a connection of asyncpg or psycopg."""
    if hasattr(connection, "is_in_transaction"):
        return bool(connection.is_in_transaction())
    return bool(connection.info.transaction_status)  # 0 is IDLE


def is_of_django(connection: Any) -> bool:
    """Return whether the connection is one of Django."""
    return "django" in _roots(connection)


def _roots(connection: Any) -> set[str]:
    return {base.__module__.partition(".")[0] for base in type(connection).__mro__}


def announce_after_commit(connection: Any, announce: Callable[[], None]) -> None:
    """Call `announce` after the commit if the connection is one of SQLAlchemy or Django.

    Do nothing for other connections, because they report no commits. PostgreSQL itself delivers
    notifications at the commit; on SQLite, `app.transaction()` or `handle.trigger()` sends them.
    """
    roots = _roots(connection)
    if "sqlalchemy" in roots:
        from fairlead.submit.sqlalchemy_commit import after_commit

        after_commit(connection, announce)
    elif "django" in roots:
        from fairlead.submit import django_commit

        django_commit.after_commit(connection, announce)
