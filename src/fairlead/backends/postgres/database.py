"""A PostgreSQL database: connections and transactions, direct or through a pooler."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import asyncpg
import psycopg

from fairlead.backends.postgres.failures import translated
from fairlead.backends.postgres.pools import LoopPool, ThreadPool
from fairlead.backends.postgres.requirements import check_server
from fairlead.backends.postgres.sessions import (
    CANCEL_SECONDS,
    PREPARE_THRESHOLD,
    SQL,
    STAY,
    Kind,
    LoopConnection,
    ThreadConnection,
    setting,
)
from fairlead.backends.postgres.url import Pooler, PostgresUrl, read_url
from fairlead.backends.sql.drivers import (
    Execute,
    ExecuteAsync,
    asyncpg_executor,
    drive,
    drive_async,
    executor,
    join,
    join_async,
)
from fairlead.errors import StoreUnavailable
from fairlead.forks import free_when_forked
from fairlead.ports.statements import Row, ServerConnections, ServerMemory, Statement, Step, Steps

T = TypeVar("T")

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""The level for which the statements are written, whatever the default is."""

_MOST_TRIES = 10
"""Tries of a statement alone. Where the default isolation is SERIALIZABLE, a read may fail too."""

_BEGIN_HANDLER = "BEGIN; " + setting(Kind.HANDLER.value, "SET LOCAL")


class Single(Generator[Step, Sequence[Row], T]):
    """Steps of a single statement.

    Alone they cost one round trip instead of three. Other steps can include them (`yield from`).
    """

    def __init__(self, statement: Statement, result: Callable[[Sequence[Row]], T]) -> None:
        self.statement = statement
        self.result = result
        self._is_begun = False

    def send(self, value: Sequence[Row] | None) -> Step:
        if self._is_begun:
            raise StopIteration(self.result(value or ()))
        self._is_begun = True
        return self.statement

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Step:
        """Raise the error, as a generator without a handler does."""
        return super().throw(typ, val, tb)


class PostgresDatabase:
    """Connections to one PostgreSQL database: psycopg from threads, asyncpg from event loops.

    Threads share at most `pool_size` connections. Each event loop has at most `pool_size` for nodes
    and as many for handlers. A connection is opened when it is first needed, and dropped when it is
    found dead or was not used for a while.

    Behind a pooler in transaction mode, a transaction sets what it needs, and nothing is prepared.
    """

    dialect = "postgres"
    has_one_writer = False

    def __init__(self, url: str, pool_size: int | None = None) -> None:
        self._given = read_url(url)
        self.url, self.location = self._given.psycopg, self._given.location
        self.pool_size = pool_size or self._given.pool_size
        self._pooler = self._given.pooler
        self._finding_out = free_when_forked(threading.Lock())
        self._not_found = 0.0, StoreUnavailable()
        """Monotonic seconds and error of the last attempt to find out the pooler."""
        self._threads = ThreadPool(self.connect, self.pool_size)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Kind, LoopPool]] = (
            WeakKeyDictionary()
        )

    @property
    def pooler(self) -> Pooler:
        """Kind of the pooler in between; found out by a connection if necessary. Raise
        StoreUnavailable."""
        began = time.monotonic()
        with self._finding_out:
            if self._pooler is None and self._not_found[0] > began:
                raise self._not_found[1]
            if self._pooler is None:
                try:
                    with self._threads.lend():
                        pass
                except StoreUnavailable as error:
                    self._not_found = time.monotonic(), error
                    raise
        assert self._pooler is not None
        return self._pooler

    async def _pooler_async(self) -> Pooler:
        if self._pooler is None:
            await asyncio.to_thread(lambda: self.pooler)
        assert self._pooler is not None
        return self._pooler

    # threads --------------------------------------------------------------------------------------

    def connect(self) -> ThreadConnection:
        """Return a new psycopg connection in autocommit, which the caller closes.

        Raise StoreUnavailable if the server cannot be reached, ConfigurationError if it is too old
        or the database has another encoding than UTF-8.
        """
        return self._connect(self._given)

    def _connect(self, to: PostgresUrl) -> ThreadConnection:
        with self.failures():
            connection = ThreadConnection.connect(
                to.psycopg,
                autocommit=True,
                application_name="fairlead",
                client_encoding="UTF8",
                connect_timeout=to.connect_timeout,
                prepare_threshold=None,
            )
            connection.response_timeout = to.response_timeout
            try:
                info = connection.info
                encoding = info.parameter_status("server_encoding")
                check_server(self.location, info.server_version // 10000, encoding)
                if self._pooler is None:
                    self._pooler = _pooler_of(connection)
                connection.prepare_threshold = self._prepare_threshold
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            except BaseException:
                connection.close()
                raise
            return connection

    @property
    def _prepare_threshold(self) -> int | None:
        return None if self._pooler is Pooler.TRANSACTION else PREPARE_THRESHOLD

    def connection(self) -> AbstractContextManager[ThreadConnection]:
        """Lend an idle connection, or a new one, for the block. A connection that is left inside a
        transaction is closed."""
        return self._threads.lend()

    @contextmanager
    def transaction(self) -> Iterator[ThreadConnection]:
        with self.connection() as connection:
            connection.is_restored = False
            with self.failures():
                connection.execute(_BEGIN_HANDLER, prepare=False)
            connection.is_patient = True
            try:
                yield connection
            except Exception:
                if not connection.closed:
                    connection.rollback()
                    self._restore(connection)
                raise
            with self.failures():
                connection.execute("COMMIT")
            if not connection.is_restored:
                self._restore(connection)

    def _restore(self, connection: ThreadConnection) -> None:
        """Restore the session after a handler; close it if it cannot be restored."""
        try:
            connection.restore(self._prepare_threshold)
        except psycopg.Error:
            connection.close()

    def run(self, steps: Steps[T], is_patient: bool = False) -> T:
        with self.connection() as connection, self.failures(connection):
            connection.is_patient = is_patient
            execute = executor(connection)
            if isinstance(steps, Single):
                result: T = steps.result(_alone(execute)(steps.statement))
                return result
            with connection.transaction():
                return drive(steps, execute)

    def read_now(self, steps: Steps[T]) -> T:
        with self.connection() as connection, self.failures(connection):
            return drive(steps, _alone(executor(connection)))

    # event loops ----------------------------------------------------------------------------------

    async def connect_async(self, kind: Kind = Kind.NODE) -> LoopConnection:
        """Return a new asyncpg connection, which the caller closes.

        Raise StoreUnavailable if the server cannot be reached, ConfigurationError if it is too old
        or the database has another encoding than UTF-8.
        """
        return await self._connect_async(self._given, await self._pooler_async(), kind)

    async def _connect_async(self, to: PostgresUrl, pooler: Pooler, kind: Kind) -> LoopConnection:
        reasons = []
        for server in to.tries():
            try:
                return await self._connect_to(to, server, pooler, kind)
            except StoreUnavailable as error:
                if len(to.servers) == 1:
                    raise
                reason = str(error).removeprefix(f"{self.location}: ")
                reasons.append(f"{server['host']}:{server['port']}: {reason}")
        raise StoreUnavailable(f"{self.location}: {'; '.join(reasons)}")

    async def _connect_to(
        self, to: PostgresUrl, server: dict[str, Any], pooler: Pooler, kind: Kind
    ) -> LoopConnection:
        """Connect to one of the servers, because asyncpg has one time-out for all of them."""
        settings = STAY | (Kind.NODE.value if kind is Kind.RELAXED else kind.value)
        with self.failures():
            connection: LoopConnection = await asyncpg.connect(
                to.asyncpg,
                **server,
                timeout=to.connect_timeout or math.inf,
                command_timeout=None if kind is Kind.HANDLER else to.response_timeout,
                statement_cache_size=0 if pooler is Pooler.TRANSACTION else 256,
                max_cached_statement_lifetime=0,
                server_settings={"application_name": "fairlead"}
                | (settings if pooler is Pooler.NONE else {}),
                connection_class=LoopConnection,
            )
            try:
                encoding = getattr(connection.get_settings(), "server_encoding", None)
                check_server(self.location, connection.get_server_version().major, encoding)
                if pooler is Pooler.SESSION:
                    await _begin_session(connection, settings, to.connect_timeout)
                if kind is Kind.RELAXED:
                    await self._change(connection, kind)
            except BaseException:
                connection.terminate()
                raise
            return connection

    async def _change(self, connection: LoopConnection, kind: Kind) -> None:
        """Make a NODE connection a RELAXED one, or the reverse. Raise StoreUnavailable."""
        if await self._pooler_async() is not Pooler.TRANSACTION:  # else each transaction sets it
            value = Kind.RELAXED.value["synchronous_commit"] if kind is Kind.RELAXED else "DEFAULT"
            with self.failures(connection):
                await connection.execute(f"SET synchronous_commit TO {value}")

    async def connect_listening(self) -> LoopConnection | None:
        """Return a new connection that stays one session of the server, which the caller closes;
        None if the pooler allows none.

        Raise StoreUnavailable if the server cannot be reached.
        """
        if self._given.direct is not None:
            return await self._connect_async(self._given.direct, Pooler.NONE, Kind.NODE)
        if await self._pooler_async() is Pooler.TRANSACTION:
            return None
        return await self.connect_async()

    def connect_listening_now(self) -> ThreadConnection | None:
        """Return such a connection for threads."""
        if self._given.direct is not None:
            return self._connect(self._given.direct)
        return None if self.pooler is Pooler.TRANSACTION else self.connect()

    @asynccontextmanager
    async def connection_async(self, kind: Kind = Kind.NODE) -> AsyncIterator[LoopConnection]:
        """Lend an idle connection of the running loop, or a new one, for the block. A connection
        that is left in a transaction is dropped."""
        pool = self._pool(kind)
        connection = await pool.acquire(kind)
        is_cut_off = True
        try:
            yield connection
            is_cut_off = False
        except Exception:
            is_cut_off = False
            raise
        finally:
            pool.release(kind, connection, is_cut_off or connection.is_spoiled)

    @asynccontextmanager
    async def _statements(self, kind: Kind = Kind.NODE) -> AsyncIterator[LoopConnection]:
        """Lend a connection for statements of ours, and translate their errors. Let the server
        cancel a statement that is given up."""
        async with self.connection_async(kind) as connection:
            with self.failures(connection):
                try:
                    yield connection
                except TimeoutError:
                    await connection.close(timeout=CANCEL_SECONDS)
                    raise

    def _pool(self, kind: Kind) -> LoopPool:
        loop = asyncio.get_running_loop()
        pools = self._loops.get(loop)
        if pools is None:
            for closed in [each for each in self._loops if each.is_closed()]:
                for pool in self._loops.pop(closed, {}).values():
                    pool.terminate()
            node, handler = (
                LoopPool(
                    self.connect_async,
                    self._change,
                    self._threads.close_unused,
                    self._make_room,
                    self.pool_size,
                )
                for _ in range(2)
            )
            pools = self._loops[loop] = {
                Kind.NODE: node,
                Kind.RELAXED: node,
                Kind.HANDLER: handler,
            }
        return pools[kind]

    def _make_room(self, needy: LoopPool) -> None:
        """Close the idle connections of threads, and those of the running loop's other pool."""
        self._threads.close()
        for pool in self._loops.get(asyncio.get_running_loop(), {}).values():
            if pool is not needy:
                pool.terminate()

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[LoopConnection]:
        async with self.connection_async(Kind.HANDLER) as connection:
            connection.is_restored = False
            transaction = connection.transaction()
            with self.failures(connection):
                await transaction.start()
                if self._pooler is Pooler.TRANSACTION:
                    await connection.execute(setting(Kind.HANDLER.value, "SET LOCAL"))
            try:
                yield connection
            except Exception:
                if not connection.is_closed():
                    await transaction.rollback()
                    await _restore(connection)
                raise
            with self.failures(connection):
                await transaction.commit()
            if not connection.is_restored:
                await _restore(connection)

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        kind = Kind.NODE if durable else Kind.RELAXED
        async with self._statements(kind) as connection:
            execute = asyncpg_executor(connection)
            if isinstance(steps, Single) and self._pooler is not Pooler.TRANSACTION:
                single: T = steps.result(await _alone_async(execute)(steps.statement))
                return single
            await connection.execute(self._begin(kind))
            try:
                result = await drive_async(steps, execute)
                await connection.execute("COMMIT")
            except Exception as error:
                if not (connection.is_closed() or isinstance(error, TimeoutError)):
                    await connection.execute("ROLLBACK")
                raise
            return result

    def _begin(self, kind: Kind) -> str:
        if self._pooler is Pooler.TRANSACTION:
            return f"{_BEGIN}; " + setting(kind.value, "SET LOCAL")
        return _BEGIN

    async def read(self, steps: Steps[T], *, together: bool = False) -> T:
        if together or await self._pooler_async() is Pooler.TRANSACTION:
            # Two steps of asyncpg for one statement would reach two sessions without a transaction.
            return await self.run_async(steps, durable=False)
        # The kind of heartbeats and renewals, so that a node at rest needs no other connection.
        async with self._statements(Kind.RELAXED) as connection:
            return await drive_async(steps, _alone_async(asyncpg_executor(connection)))

    # the caller's connection ----------------------------------------------------------------------

    def join(self, connection: Any, steps: Steps[T]) -> T:
        return join(connection, steps)

    async def join_async(self, connection: Any, steps: Steps[T]) -> T:
        return await join_async(connection, steps)

    def complete(self, connection: ThreadConnection, steps: Steps[T]) -> T:
        connection.restore(self._prepare_threshold)
        return self.join(connection, steps)

    async def complete_async(self, connection: LoopConnection, steps: Steps[T]) -> T:
        await connection.restore()
        return await self.join_async(connection, steps)

    # the doctor -----------------------------------------------------------------------------------

    def connections(self) -> ServerConnections:
        row = self.read_now(Single(Statement(SQL["connections"]), lambda rows: rows[0]))
        ours, used, most, used_by_role, most_of_role = row
        return ServerConnections(
            ours,
            used,
            most,
            used_by_role,
            None if most_of_role < 0 else most_of_role,
            self.pool_size,
            self.pooler is not Pooler.TRANSACTION or self._given.direct is not None,
        )

    def memory(self) -> ServerMemory:
        row = self.read_now(Single(Statement(SQL["memory"]), lambda rows: rows[0]))
        work_mem, temp_file_limit = row
        return ServerMemory(
            work_mem // 1024, None if temp_file_limit < 0 else temp_file_limit // 1024
        )

    # errors and closing ---------------------------------------------------------------------------

    def failures(
        self, connection: psycopg.Connection[Any] | asyncpg.Connection | None = None
    ) -> AbstractContextManager[None]:
        """Translate the drivers' errors; see `translated`."""
        return translated(self.location, connection, self._drop_idle)

    def close(self) -> None:
        """Close all idle connections; those of event loops without waiting for the server."""
        self._drop_idle()
        self._loops.clear()

    def _drop_idle(self) -> None:
        self._threads.close()
        for pools in list(self._loops.values()):
            for pool in pools.values():
                pool.terminate()

    async def close_async(self) -> None:
        """Close all idle connections; wait for the server with those of the running loop."""
        await self.close_loop()
        self.close()

    async def close_loop(self) -> None:
        """Close the idle connections of the running loop."""
        pools = self._loops.pop(asyncio.get_running_loop(), {})
        await asyncio.gather(*(pool.close() for pool in set(pools.values())))


def _alone(execute: Execute) -> Execute:
    """Return a function that executes each step in a transaction of its own, and again after a
    serialization failure."""

    def run(step: Step) -> Sequence[Row]:
        for _ in range(_MOST_TRIES - 1):
            with suppress(psycopg.errors.SerializationFailure):
                return execute(step)
        return execute(step)

    return run


def _alone_async(execute: ExecuteAsync) -> ExecuteAsync:
    """Return the same for an event loop."""

    async def run(step: Step) -> Sequence[Row]:
        for _ in range(_MOST_TRIES - 1):
            with suppress(asyncpg.SerializationError):
                return await execute(step)
        return await execute(step)

    return run


async def _begin_session(
    connection: LoopConnection, settings: dict[str, str], connect_timeout: int
) -> None:
    """Set the settings. This first statement waits until the pooler has a session to lend."""
    try:
        await connection.execute(setting(settings, "SET"), timeout=connect_timeout or None)
    except TimeoutError:
        raise TimeoutError(
            "the pooler lent no session within connect_timeout: raise its default_pool_size, lower"
            " pool_size in the URL, or run fewer workers"
        ) from None


async def _restore(connection: LoopConnection) -> None:
    """Restore the session after a handler; close it if it cannot be restored."""
    try:
        await connection.restore()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def _pooler_of(connection: psycopg.Connection[Any]) -> Pooler:
    """Return the kind of pooler by the process that serves the session. A pooler shows clients a
    number of its own, to cancel statements. It counts as one in transaction mode, because no
    statement shows the mode for certain."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return Pooler.NONE if row[0] == connection.info.backend_pid else Pooler.TRANSACTION
