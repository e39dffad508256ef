"""Database work as data: steps that any driver can run, in the caller's transaction or in its own.

A store describes its work as a generator: it yields steps and is sent the rows of each. sqlite3,
aiosqlite, psycopg and asyncpg run the same generator, so every statement is written once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

Row = Sequence[Any]
T = TypeVar("T")


class Statement(NamedTuple):
    """One statement with its parameters; returns its rows (none for a plain write)."""

    sql: str
    params: Sequence[Any] = ()


class Many(NamedTuple):
    """One statement for many rows of parameters; returns no rows."""

    sql: str
    rows: Sequence[Sequence[Any]]


class Copy(NamedTuple):
    """Rows in PostgreSQL's binary COPY format; returns no rows."""

    table: str
    columns: Sequence[str]
    data: Iterable[bytes]
    """Pieces of the COPY data, made while the database takes in earlier ones. An error while a
    piece is made ends the transaction."""


Step = Statement | Many | Copy
Steps = Generator[Step, Sequence[Row], T]


class Database(Protocol):
    """Runs the steps of a store. Each run is one transaction, all or nothing."""

    location: str
    """Name of the database for messages, without secrets."""

    def run(self, steps: Steps[T]) -> T:
        """Run the steps now, from any thread. Raises StoreUnavailable when the database cannot be
        reached."""

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        """Run the steps from the event loop without blocking it. `durable=False`: a power cut, but
        never a crash of a process, may undo this transaction until a later durable one of the same
        database has committed."""

    async def read(self, steps: Steps[T], *, together: bool = False) -> T:
        """Run steps that only read, in the fastest way; with `together`, in one transaction where
        each statement would be one."""

    def read_now(self, steps: Steps[T]) -> T:
        """Run steps that only read, from any thread; never waits for a writer."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager that gives a connection inside a transaction: commits at the end
        of the block, rolls back if the block raises."""

    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        """Return the asynchronous context manager that does what `transaction` does."""

    def join(self, connection: Any, steps: Steps[T]) -> T:
        """Run the steps inside the transaction of the caller's connection or session; the caller
        commits."""

    async def join_async(self, connection: Any, steps: Steps[T]) -> T:
        """Run the steps as `join` does, on an asynchronous connection or session."""

    def complete(self, connection: Any, steps: Steps[T]) -> T:
        """Run the steps that complete the task of a handler, at the end of its `transaction`,
        under the settings that the connection had at its beginning."""

    async def complete_async(self, connection: Any, steps: Steps[T]) -> T:
        """Run the steps as `complete` does, at the end of `transaction_async`."""

    async def close_async(self) -> None:
        """Close everything the event loop has opened, after pending writes are written."""

    async def close_loop(self) -> None:
        """Close only what the running event loop has opened, and nothing of other loops and
        threads."""

    def close(self) -> None:
        """Close everything."""


class ServerConnections(NamedTuple):
    """Connections to the server of a database."""

    ours: int
    """Connections of Fairlead with the role of this process."""
    used: int
    """Connections of all roles; `most` is how many there may be."""
    most: int
    used_by_role: int
    """Connections of this role; `most_of_role` is how many it may have, None without a limit."""
    most_of_role: int | None
    pool_size: int  # connections at most, per pool of a process
    has_sessions: bool
    """Whether a connection keeps its session. Without, workers poll and hold no locks."""


class ServerMemory(NamedTuple):
    """Limits of one statement on the server of a database, in kB."""

    work_mem: int
    """Memory of one sort or hash."""
    temp_file_limit: int | None
    """Size of the temporary files of one session, None without a limit."""


class SqlDatabase(Database, Protocol):
    """A SQL database, for stores, channels and coordinators."""

    def run(self, steps: Steps[T], is_patient: bool = False) -> T:
        """Run the steps. `is_patient`: wait for each statement as long as it takes."""

    def connections(self) -> ServerConnections | None:
        """Return the connections to the server; None if the database is a file. Raises
        StoreUnavailable."""

    def memory(self) -> ServerMemory | None:
        """Return the limits of one statement; None if the database has none. Raises
        StoreUnavailable."""

    dialect: str
    """Name of the folder of its migrations: "sqlite" or "postgres"."""
    has_one_writer: bool
    """Whether a transaction that writes waits for the end of any other that has written."""
