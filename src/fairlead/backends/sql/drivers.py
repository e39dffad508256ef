"""Run steps through the caller's connection: sqlite3, aiosqlite, psycopg, asyncpg, or SQLAlchemy or
Django around one of them.

The owner of the connection begins and ends the transaction; nothing here does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from fairlead.errors import ConfigurationError
from fairlead.ports.statements import Copy, Many, Row, Statement, Step, Steps

T = TypeVar("T")
Execute = Callable[[Step], Sequence[Row]]
ExecuteAsync = Callable[[Step], Awaitable[Sequence[Row]]]


def drive(steps: Steps[T], execute: Execute) -> T:
    """Run the steps one after another and return their result; close them after an error."""
    try:
        step = next(steps)
        while True:
            step = steps.send(execute(step))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def drive_async(steps: Steps[T], execute: ExecuteAsync) -> T:
    """Run the steps as `drive` does, through an asynchronous driver."""
    try:
        step = next(steps)
        while True:
            step = steps.send(await execute(step))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def join(connection: Any, steps: Steps[T]) -> T:
    """Run the steps in the transaction of a synchronous connection or session.

    Raise ConfigurationError for an asynchronous or unknown kind of connection.
    """
    if _kind(connection) == "django":
        from fairlead.backends.sql import django_connection

        return django_connection.join(connection, lambda raw: drive(steps, executor(raw)))
    return drive(steps, executor(connection))


async def join_async(connection: Any, steps: Steps[T]) -> T:
    """Run the steps in the transaction of a connection or session of any kind.

    Raise ConfigurationError for an unknown kind of connection.
    """
    if _kind(connection) == "django":
        from fairlead.backends.sql import django_connection

        return await django_connection.join_async(
            connection, lambda raw: drive(steps, executor(raw))
        )
    return await drive_async(steps, await executor_async(connection))


def is_async(connection: Any) -> bool:
    """Return whether statements on this connection must be awaited.

    Raise ConfigurationError for an unknown kind of connection.
    """
    return _kind(connection) in ("aiosqlite", "psycopg_async", "asyncpg", "sqlalchemy_async")


def executor(connection: Any) -> Execute:
    """Return a function that executes a step on a synchronous connection or session.

    Raise ConfigurationError for an asynchronous or unknown kind of connection.
    """
    kind = _kind(connection)
    if kind == "sqlalchemy":
        return executor(_sqlalchemy_driver(connection))
    if kind == "sqlite3":
        return _sqlite3(connection)
    if kind == "psycopg":
        return _psycopg(connection)
    raise ConfigurationError(
        f"{type(connection).__name__} is asynchronous: use `await task.submit_async(...)` with it"
    )


async def executor_async(connection: Any) -> ExecuteAsync:
    """Return a coroutine function that executes a step on a connection or session of any kind.

    Raise ConfigurationError for an unknown kind of connection.
    """
    kind = _kind(connection)
    if kind == "sqlalchemy_async":
        return await executor_async(await _sqlalchemy_async_driver(connection))
    if kind == "aiosqlite":
        return _aiosqlite(connection)
    if kind == "psycopg_async":
        return _psycopg_async(connection)
    if kind == "asyncpg":
        return asyncpg_executor(connection)
    execute = executor(connection)

    async def run(step: Step) -> Sequence[Row]:
        return execute(step)

    return run


def _kind(connection: Any) -> str:
    for base in type(connection).__mro__:
        module, name = base.__module__, base.__name__
        root = module.partition(".")[0]
        if root == "sqlalchemy" and name in ("Session", "Connection", "scoped_session"):
            return "sqlalchemy"
        if root == "sqlalchemy" and name in (
            "AsyncSession",
            "AsyncConnection",
            "async_scoped_session",
        ):
            return "sqlalchemy_async"
        if root == "django" and name in ("ConnectionProxy", "BaseDatabaseWrapper"):
            return "django"
        if root == "sqlite3" and name == "Connection":
            return "sqlite3"
        if root == "aiosqlite" and name == "Connection":
            return "aiosqlite"
        if root == "psycopg" and name in ("Connection", "AsyncConnection"):
            return "psycopg" if name == "Connection" else "psycopg_async"
        if root == "asyncpg" and name in ("Connection", "PoolConnectionProxy"):
            return "asyncpg"
    raise ConfigurationError(
        f"cannot submit through a {type(connection).__module__}.{type(connection).__name__}; give a"
        " connection of sqlite3, aiosqlite, psycopg or asyncpg, or a SQLAlchemy Connection,"
        " Session, AsyncConnection or AsyncSession, or django.db.connection"
    )


def _sqlite3(connection: Any) -> Execute:
    def execute(step: Step) -> Sequence[Row]:
        # Our own cursor returns plain rows, even if the caller has set a row factory.
        cursor = connection.cursor()
        cursor.row_factory = None
        if isinstance(step, Statement):
            return cursor.execute(step.sql, step.params).fetchall()  # type: ignore[no-any-return]
        if isinstance(step, Many):
            cursor.executemany(step.sql, step.rows)
            return ()
        raise TypeError("COPY is a PostgreSQL step")

    return execute


def _aiosqlite(connection: Any) -> ExecuteAsync:
    async def execute(step: Step) -> Sequence[Row]:
        if isinstance(step, Statement):
            cursor = await connection.execute(step.sql, step.params)
            return [tuple(row) for row in await cursor.fetchall()]
        if isinstance(step, Many):
            await connection.executemany(step.sql, step.rows)
            return ()
        raise TypeError("COPY is a PostgreSQL step")

    return execute


@cache
def _psycopg_cursors() -> tuple[Any, Any]:
    """Return the classes of cursors, for Connection and AsyncConnection, that ignore the adapters
    and the row factory which the caller has set on the connection."""
    import psycopg
    from psycopg.adapt import AdaptersMap, Dumper
    from psycopg.rows import tuple_row
    from psycopg.types.string import BytesBinaryDumper

    class HexDumper(Dumper):
        """The elements of lists of bytes. psycopg doubles their backslashes where
        standard_conforming_strings is off."""

        oid = BytesBinaryDumper.oid

        def dump(self, obj: bytes) -> bytes:
            return b"\\x" + obj.hex().encode()

    ours = AdaptersMap(psycopg.adapters)
    for dumper in (HexDumper, BytesBinaryDumper):  # the last one dumps bytes outside of lists
        ours.register_dumper(bytes, dumper)

    class Adapters:
        @property
        def adapters(self) -> AdaptersMap:
            return ours

    class Cursor(Adapters, psycopg.RawCursor[Any]):
        def __init__(self, connection: Any) -> None:
            super().__init__(connection, row_factory=tuple_row)

    class AsyncCursor(Adapters, psycopg.AsyncRawCursor[Any]):
        def __init__(self, connection: Any) -> None:
            super().__init__(connection, row_factory=tuple_row)

    return Cursor, AsyncCursor


def _psycopg(connection: Any) -> Execute:
    new_cursor, _ = _psycopg_cursors()
    _check_encoding(connection)

    def execute(step: Step) -> Sequence[Row]:
        with new_cursor(connection) as cursor:
            if isinstance(step, Statement):
                cursor.execute(step.sql.encode(), step.params)
                return () if cursor.rownumber is None else cursor.fetchall()
            if isinstance(step, Many):
                cursor.executemany(step.sql.encode(), step.rows)
                return ()
            with cursor.copy(_copy_sql(step)) as copy:
                # The server reads one piece while the next one is made.
                for piece in step.data:
                    copy.write(piece)
            return ()

    return execute


def _psycopg_async(connection: Any) -> ExecuteAsync:
    _, new_cursor = _psycopg_cursors()

    _check_encoding(connection)

    async def execute(step: Step) -> Sequence[Row]:
        async with new_cursor(connection) as cursor:
            if isinstance(step, Statement):
                await cursor.execute(step.sql.encode(), step.params)
                return () if cursor.rownumber is None else await cursor.fetchall()
            if isinstance(step, Many):
                await cursor.executemany(step.sql.encode(), step.rows)
                return ()
            async with cursor.copy(_copy_sql(step)) as copy:
                for piece in step.data:
                    await copy.write(piece)
            return ()

    return execute


def asyncpg_executor(connection: Any) -> ExecuteAsync:
    """Return a coroutine function that executes a step on an asyncpg connection."""

    async def execute(step: Step) -> Sequence[Row]:
        if isinstance(step, Statement):
            rows: Sequence[Row] = await connection.fetch(step.sql, *step.params)
            return rows
        if isinstance(step, Many):
            await connection.executemany(step.sql, step.rows)
            return ()
        # A memoryview on purpose: asyncpg reads a file object in another thread, and takes bytes
        # for a path.
        await connection.copy_to_table(
            step.table,
            source=memoryview(b"".join(step.data)),
            columns=step.columns,
            format="binary",
        )
        return ()

    return execute


def _check_encoding(connection: Any) -> None:
    """Raise ConfigurationError if psycopg would read texts from this connection as bytes."""
    if connection.info.encoding == "ascii":
        raise ConfigurationError(
            "this connection has the client_encoding SQL_ASCII, which can carry no text; give a"
            " connection with client_encoding UTF8"
        )


def _copy_sql(step: Copy) -> bytes:
    # Table and columns are names in our own code, never values.
    return f"COPY {step.table} ({', '.join(step.columns)}) FROM STDIN WITH (FORMAT binary)".encode()


def _sqlalchemy_driver(source: Any) -> Any:
    """Return the driver's connection, after SQLAlchemy has begun its transaction there."""
    _check_phases(source)
    connection = source.connection() if hasattr(source, "get_bind") else source
    connection.exec_driver_sql("SELECT 1")
    return connection.connection.driver_connection


async def _sqlalchemy_async_driver(source: Any) -> Any:
    _check_phases(source)
    connection = await source.connection() if hasattr(source, "get_bind") else source
    await connection.exec_driver_sql("SELECT 1")
    return (await connection.get_raw_connection()).driver_connection


def _check_phases(source: Any) -> None:
    """Raise ConfigurationError for a two-phase transaction. PostgreSQL would refuse to prepare it,
    as it notifies the workers, and SQLite has none."""
    source = source() if callable(source) else source  # of a scoped session
    for name in ("sync_session", "sync_connection"):
        source = getattr(source, name, None) or source
    kind = type(source.get_transaction()).__name__
    if getattr(source, "twophase", False) or kind == "TwoPhaseTransaction":
        raise ConfigurationError(
            "a two-phase transaction cannot carry tasks: submit them after its commit, or in a"
            " transaction of their own"
        )
