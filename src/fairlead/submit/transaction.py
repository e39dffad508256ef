"""Transactions of the user: after a commit, send the notifications of the tasks submitted in the
transaction; after a rollback, send none."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from fairlead.errors import ConfigurationError
from fairlead.ports.notification import Notification


class OpenTransactions:
    """Open transactions of `App.transaction`, by the `id()` of their connection."""

    def __init__(self) -> None:
        self._open: dict[int, Transaction] = {}

    def keep(self, connection: Any, notification: Notification) -> bool:
        """Keep the notification until the transaction on this connection commits. Return False if
        the connection has no open transaction."""
        transaction = self._open.get(id(connection))
        if transaction is not None:
            transaction.notifications.append(notification)
        return transaction is not None

    def begin(self, connection: Any, transaction: Transaction) -> None:
        """Register a transaction that has begun on this connection."""
        self._open[id(connection)] = transaction

    def end(self, connection: Any) -> None:
        """Remove the transaction of this connection, because it has ended."""
        self._open.pop(id(connection), None)


class Transaction:
    """A transaction on a connection of sqlite3 or psycopg (`with`), or of aiosqlite, asyncpg or
    psycopg (`async with`)."""

    def __init__(
        self,
        connection: Any,
        transactions: OpenTransactions,
        announce: Callable[[Notification], None],
    ) -> None:
        """Raises ConfigurationError for a class."""
        if isinstance(connection, type):
            raise ConfigurationError("app.transaction() takes an open connection, not a class")
        self._connection = connection
        self._transactions = transactions
        self._announce = announce
        self._inner: Any = None
        self.notifications: list[Notification] = []

    def __enter__(self) -> Any:
        connection = self._connection
        if hasattr(connection, "in_transaction") and hasattr(connection, "execute"):  # sqlite3
            if connection.in_transaction:
                raise ConfigurationError(
                    "this connection already has an open transaction: commit it, or submit without"
                    " app.transaction()"
                )
            connection.execute("BEGIN IMMEDIATE")
        elif hasattr(connection, "transaction"):  # psycopg
            self._inner = connection.transaction()
            self._inner.__enter__()
        else:
            raise ConfigurationError(
                "app.transaction() takes a connection of sqlite3 or psycopg, not"
                f" {type(connection).__name__}"
            )
        self._transactions.begin(connection, self)
        return connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transactions.end(self._connection)
        if self._inner is not None:
            self._inner.__exit__(kind, error, trace)
        else:
            try:
                if error is None:
                    self._connection.commit()
            finally:
                self._connection.rollback()  # also after a commit that a constraint refused
        if error is None:
            self._announce_all()

    async def __aenter__(self) -> Any:
        connection = self._connection
        if hasattr(connection, "in_transaction"):  # aiosqlite
            await connection.execute("BEGIN IMMEDIATE")
        elif hasattr(connection, "transaction"):  # asyncpg, psycopg
            self._inner = connection.transaction()
            await self._inner.__aenter__()
        else:
            raise ConfigurationError(
                "app.transaction() takes a connection of aiosqlite, asyncpg or psycopg, not"
                f" {type(connection).__name__}"
            )
        self._transactions.begin(connection, self)
        return connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transactions.end(self._connection)
        if self._inner is not None:
            await self._inner.__aexit__(kind, error, trace)
        else:
            try:
                if error is None:
                    await self._connection.commit()
            finally:
                await self._connection.rollback()
        if error is None:
            self._announce_all()

    def _announce_all(self) -> None:
        for notification in self.notifications:
            self._announce(notification)


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
