"""Database work as data: steps that any driver can run, in the caller's transaction or in one of
ours.

A store describes what to execute as a generator: it yields steps and is sent the rows of each. The
same generator is run by sqlite3, aiosqlite, psycopg or asyncpg, so a statement and its meaning are
written once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

Row = Sequence[Any]
T = TypeVar("T")


class Statement(NamedTuple):
    """One statement with its parameters; answers its rows (none for a plain write)."""

    sql: str
    params: Sequence[Any] = ()


class Many(NamedTuple):
    """One statement for many parameter rows; answers no rows."""

    sql: str
    rows: Sequence[Sequence[Any]]


class Copy(NamedTuple):
    """Rows in PostgreSQL's binary COPY format; answers no rows."""

    table: str
    columns: Sequence[str]
    data: Iterable[bytes]
    """Piece by piece; they may be made while the database takes in those before. One that cannot be
    made ends the transaction."""


Step = Statement | Many | Copy
Steps = Generator[Step, Sequence[Row], T]


class Database(Protocol):
    """Runs the steps of a store. Each run is one transaction, all or nothing."""

    location: str
    """Which database it is, for messages; no secrets."""

    def run(self, steps: Steps[T]) -> T:
        """Run the steps now, from any thread. Raises StoreUnavailable when the database cannot be
        reached."""

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        """The same from the event loop, without blocking it. `durable=False`: a power cut (never a
        crash of a process) may undo this transaction, until a later durable one of the same
        database has committed."""

    async def read(self, steps: Steps[T]) -> T:
        """Run steps that only read, by the shortest way."""

    def read_now(self, steps: Steps[T]) -> T:
        """Run steps that only read, from any thread; never waits for a writer."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A connection inside a transaction that commits at the end of the block, or rolls back
        when it raises."""

    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        """The same with a connection for asynchronous code."""

    def join(self, connection: Any, steps: Steps[T]) -> T:
        """Run the steps inside the transaction of the caller's connection or session; it commits,
        not we."""

    async def join_async(self, connection: Any, steps: Steps[T]) -> T:
        """The same for asynchronous connections and sessions."""

    async def close_async(self) -> None:
        """Close what the event loop's side has opened; what waits to be written is written
        first."""

    def close(self) -> None:
        """Close everything."""


class SqlDatabase(Database, Protocol):
    """A SQL database as stores, channels and coordinators use it."""

    dialect: str
    """Which migrations are its own: "sqlite" or "postgres"."""
