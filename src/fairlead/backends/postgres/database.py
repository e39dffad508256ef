"""A PostgreSQL database: connections, transactions, and the errors of its drivers."""

from __future__ import annotations

import asyncio
import os
import re
import select
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit
from weakref import WeakKeyDictionary

import asyncpg
import psycopg

from fairlead.backends.sql.drivers import (
    asyncpg_executor,
    drive,
    drive_async,
    executor,
    executor_async,
)
from fairlead.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from fairlead.ports.statements import Row, Statement, Step, Steps

T = TypeVar("T")

CONNECT_TIMEOUT = 10
"""Seconds to wait for a connection, unless the URL has connect_timeout."""

_NODE_SETTINGS = {
    # A batch finds its rows by primary key, a lane by its index. A plan made while the table was
    # empty would scan the whole table and be kept while the table grows, so other plans are turned
    # off. A statement without a useful index (counts, incidents) still scans.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
_HANDLER_SETTINGS: dict[str, str] = {}


class Kind(Enum):
    """Purpose of an asynchronous connection; the value has its server settings."""

    NODE = _NODE_SETTINGS
    RELAXED = _NODE_SETTINGS | {"synchronous_commit": "off"}
    HANDLER = _HANDLER_SETTINGS  # a user's statements are planned by the server's own settings


_RETRIABLE = ("08", "40", "53", "57", "58", "25006", "55P03", "3D", "28")
"""SQLSTATE prefixes after which another try may work: connection, serialization failure, resources,
shutdown, system, read-only standby, lock timeout, and a missing database or role."""

_READ_ONLY = "25006"
_PROTOCOL_VIOLATION = "08P01"  # a connection error by its number, but a bug of ours
_LIBPQ_ONLY = {
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
}


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

    Threads share at most `pool_size` connections. Each event loop has at most `pool_size` of each
    kind. A connection is opened when it is first needed, and dropped when it is found dead.
    """

    dialect = "postgres"
    has_one_writer = False

    def __init__(self, url: str, pool_size: int = 8) -> None:
        self.url, self.location, self._asyncpg_url, self._servers, self._timeout = _read_url(url)
        self.pool_size = pool_size
        self._idle: list[psycopg.Connection[Any]] = []
        self._inherited: list[psycopg.Connection[Any]] = []
        self._pid = os.getpid()
        self._permits = threading.BoundedSemaphore(pool_size)
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Kind, _AsyncPool]] = (
            WeakKeyDictionary()
        )

    # threads --------------------------------------------------------------------------------------

    def connect(self) -> psycopg.Connection[Any]:
        """Return a new psycopg connection in autocommit, which the caller closes.

        Raise StoreUnavailable if the server cannot be reached.
        """
        with self.failures():
            return psycopg.connect(
                self.url,
                autocommit=True,
                application_name="fairlead",
                connect_timeout=self._timeout,
                prepare_threshold=2,
            )

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend an idle connection, or a new one, for the block. A connection that is left inside a
        transaction is closed."""
        with self._permits:
            connection = self._take_idle() or self.connect()
            try:
                yield connection
            finally:
                if (
                    not connection.closed
                    and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                ):
                    self._idle.append(connection)
                else:
                    connection.close()

    def _take_idle(self) -> psycopg.Connection[Any] | None:
        if self._pid != os.getpid():
            # After a fork these sockets belong to the parent: never use or close them.
            self._inherited, self._idle, self._pid = self._idle, [], os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if _is_alive(connection):
                return connection
            connection.close()

    def _close_idle(self) -> None:
        while (connection := self._take_idle()) is not None:
            connection.close()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with self.connection() as connection:
            with self.failures():
                connection.execute("BEGIN")
            try:
                yield connection
            except Exception:
                if not connection.closed:
                    connection.rollback()
                raise
            with self.failures():
                connection.execute("COMMIT")

    def run(self, steps: Steps[T]) -> T:
        with self.connection() as connection, self.failures(connection):
            execute = executor(connection)
            if isinstance(steps, Single):
                result: T = steps.result(execute(steps.statement))
                return result
            with connection.transaction():
                return drive(steps, execute)

    def read_now(self, steps: Steps[T]) -> T:
        with self.connection() as connection, self.failures(connection):
            return drive(steps, executor(connection))

    # event loops ----------------------------------------------------------------------------------

    async def connect_async(self, kind: Kind = Kind.NODE) -> asyncpg.Connection:
        """Return a new asyncpg connection, which the caller closes.

        Raise StoreUnavailable if the server cannot be reached.
        """
        reasons = []
        for server in self._servers:
            try:
                with self.failures():
                    # Each server by itself, because asyncpg has one time-out for all of them.
                    return await asyncpg.connect(
                        self._asyncpg_url,
                        **server,
                        timeout=self._timeout,
                        statement_cache_size=256,
                        max_cached_statement_lifetime=0,
                        server_settings={"application_name": "fairlead", **kind.value},
                    )
            except StoreUnavailable as error:
                if not server:
                    raise
                reason = str(error).removeprefix(f"{self.location}: ")
                reasons.append(f"{server['host']}:{server['port']}: {reason}")
        raise StoreUnavailable(f"{self.location}: {'; '.join(reasons)}")

    @asynccontextmanager
    async def connection_async(self, kind: Kind = Kind.NODE) -> AsyncIterator[asyncpg.Connection]:
        """Lend an idle connection of the running loop, or a new one, for the block. A connection
        that is left in a transaction is dropped."""
        pool = self._pool(kind)
        connection = await pool.acquire()
        is_cut_off = True
        try:
            yield connection
            is_cut_off = False
        except Exception:
            is_cut_off = False
            raise
        finally:
            pool.release(connection, is_cut_off)

    def _pool(self, kind: Kind) -> _AsyncPool:
        loop = asyncio.get_running_loop()
        pools = self._pools.get(loop)
        if pools is None:
            pools = self._pools[loop] = {each: _AsyncPool(self, each) for each in Kind}
        return pools[kind]

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[asyncpg.Connection]:
        async with self.connection_async(Kind.HANDLER) as connection:
            transaction = connection.transaction()
            with self.failures(connection):
                await transaction.start()
            try:
                yield connection
            except Exception:
                if not connection.is_closed():
                    await transaction.rollback()
                raise
            with self.failures(connection):
                await transaction.commit()

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        async with self.connection_async(Kind.NODE if durable else Kind.RELAXED) as connection:
            with self.failures(connection):
                execute = asyncpg_executor(connection)
                if isinstance(steps, Single):
                    single: T = steps.result(await execute(steps.statement))
                    return single
                await connection.execute("BEGIN")
                try:
                    result = await drive_async(steps, execute)
                    await connection.execute("COMMIT")
                except Exception:
                    if not connection.is_closed():
                        await connection.execute("ROLLBACK")
                    raise
                return result

    async def read(self, steps: Steps[T]) -> T:
        async with self.connection_async() as connection:
            with self.failures(connection):
                return await drive_async(steps, asyncpg_executor(connection))

    # the caller's connection ----------------------------------------------------------------------

    def join(self, connection: Any, steps: Steps[T]) -> T:
        return drive(steps, executor(connection))

    async def join_async(self, connection: Any, steps: Steps[T]) -> T:
        return await drive_async(steps, await executor_async(connection))

    # errors and closing ---------------------------------------------------------------------------

    @contextmanager
    def failures(
        self, connection: psycopg.Connection[Any] | asyncpg.Connection | None = None
    ) -> Iterator[None]:
        """Translate the drivers' errors.

        Raise StoreUnavailable if another try may work, SchemaMismatch for missing tables or
        columns, ConfigurationError for a bad setting of the connection.
        """
        try:
            yield
        except (psycopg.Error, asyncpg.PostgresError) as error:
            state = error.sqlstate or ""
            if state in ("42P01", "42703"):
                raise SchemaMismatch(
                    f"{self.location}: {_line(error)}; run `fairlead migrate`"
                ) from error
            if state == _READ_ONLY:
                # The primary is another server now, or will be: ask for it again.
                self._drop_idle()
                if isinstance(connection, psycopg.Connection):
                    connection.close()
                elif connection is not None and not connection.is_closed():
                    connection.terminate()
            is_stale_plan = "cached plan must not change result type" in str(error)
            if is_stale_plan and isinstance(connection, psycopg.Connection):
                # The other connections have the same stale plan. (asyncpg drops its own.)
                connection.close()
                self._close_idle()
            lost = (
                isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not state
            )
            if (
                lost
                or is_stale_plan
                or (state.startswith(_RETRIABLE) and state != _PROTOCOL_VIOLATION)
            ):
                raise StoreUnavailable(
                    f"{self.location}: {_line(error)}{_advice(error, state)}"
                ) from error
            raise
        except asyncpg.TargetServerAttributeNotMatched as error:
            raise StoreUnavailable(
                f"{self.location}: the server is not as target_session_attrs of the URL asks"
            ) from error
        except (OSError, TimeoutError) as error:
            raise StoreUnavailable(f"{self.location}: {_line(error)}") from error
        except asyncpg.ClientConfigurationError as error:
            raise ConfigurationError(f"{self.location}: {_line(error)}") from None
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            # InterfaceError can also mean a bug of ours; a lost connection is closed.
            if isinstance(connection, asyncpg.Connection) and connection.is_closed():
                raise StoreUnavailable(f"{self.location}: the connection was lost") from error
            raise

    def close(self) -> None:
        """Close all idle connections; those of event loops without waiting for the server."""
        self._drop_idle()
        self._pools.clear()

    def _drop_idle(self) -> None:
        self._close_idle()
        for loop, pools in list(self._pools.items()):
            for pool in pools.values():
                pool.terminate(loop)

    async def close_async(self) -> None:
        """Close all idle connections; wait for the server with those of the running loop."""
        await self.close_loop()
        self.close()

    async def close_loop(self) -> None:
        """Close the idle connections of the running loop."""
        pools = self._pools.pop(asyncio.get_running_loop(), {})
        await asyncio.gather(*(pool.close() for pool in pools.values()))


class _AsyncPool:
    """Idle connections of one event loop, last used first, so that a few busy connections have
    their statements prepared."""

    def __init__(self, database: PostgresDatabase, kind: Kind) -> None:
        self._database = database
        self._kind = kind
        self._idle: list[asyncpg.Connection] = []
        self._permits = asyncio.Semaphore(database.pool_size)

    async def acquire(self) -> asyncpg.Connection:
        await self._permits.acquire()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        try:
            return await self._database.connect_async(self._kind)
        except BaseException:
            self._permits.release()
            raise

    def release(self, connection: asyncpg.Connection, is_cut_off: bool) -> None:
        """Take the connection back. A connection that was cut off during its work is dropped, so
        that the server undoes the work."""
        self._permits.release()
        if connection.is_closed():
            return
        if not is_cut_off and not connection.is_in_transaction():
            self._idle.append(connection)
        else:
            connection.terminate()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            try:
                await connection.close(timeout=2)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    def terminate(self, loop: asyncio.AbstractEventLoop) -> None:
        idle, self._idle = self._idle, []
        if loop.is_closed():
            return
        for connection in idle:
            loop.call_soon_threadsafe(connection.terminate)


def _is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the connection is usable, by its socket only, without a round trip.

    A server that sent something to an idle connection has usually closed it.
    """
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _line(error: BaseException) -> str:
    """Return the first line of the error's text, or the reason of each server that was tried."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    if others and others[0].startswith("Multiple connection attempts failed"):
        first = "; ".join(line.removeprefix("- ") for line in others[1:])
    return re.sub(r"\s+", " ", first)


def _advice(error: BaseException, state: str) -> str:
    """Return the rest of a message about an error that only a standby raises, or nothing."""
    if state == _READ_ONLY:
        return (
            "; this server only reads, such as a standby: use a URL with all servers and"
            " target_session_attrs=read-write"
        )
    if "conflict with recovery" in str(error):
        return (
            "; a standby ended this read: try again, or set hot_standby_feedback=on or a longer"
            " max_standby_streaming_delay there"
        )
    return ""


def _read_url(url: str) -> tuple[str, str, str, list[dict[str, Any]], int]:
    """Return the URL for psycopg, the location without secrets, the URL for asyncpg, its arguments
    for each server to try, and the time-out of one try in seconds. Raise ConfigurationError."""
    try:
        parts = urlsplit(url)
        scheme = parts.scheme.partition("+")[0]
        if scheme not in ("postgresql", "postgres"):
            raise ValueError(scheme)
        clean = f"postgresql://{parts.netloc}{parts.path}{parts.query and '?'}{parts.query}"
        known = psycopg.conninfo.conninfo_to_dict(clean)
        servers = _servers(known)
        timeout = int(known.get("connect_timeout") or CONNECT_TIMEOUT)
    except (ValueError, psycopg.Error):
        # Neither chained nor quoted, because the text may contain a password.
        raise ConfigurationError(
            "cannot read the PostgreSQL URL; write postgresql://user:password@host:port/database,"
            " or user:password@host1:port1,host2:port2"
        ) from None
    target = known.get("target_session_attrs")
    if len(servers) > 1 and target is None:
        # A standby would accept the connection, and then refuse every write.
        target = "read-write"
        clean += f"{'&' if parts.query else '?'}target_session_attrs={target}"
    options = [pair for pair in parse_qsl(urlsplit(clean).query) if pair[0] not in _LIBPQ_ONLY]
    asyncpg_url = f"{clean.partition('?')[0]}{'?' if options else ''}{urlencode(options)}"
    names = ",".join(f"{host or 'local socket'}:{port}" for host, port in servers)
    location = f"PostgreSQL at {names}/{known.get('dbname') or ''}"
    return clean, location, asyncpg_url, _tries(servers, target), timeout


def _servers(known: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return host and port of each server; raise ValueError."""
    hosts = str(known.get("host") or "").split(",")
    ports = [int(port or 5432) for port in str(known.get("port") or "").split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    return list(zip(hosts, ports, strict=True))


def _tries(servers: Sequence[tuple[str, int]], target: Any) -> list[dict[str, Any]]:
    """Return the arguments of asyncpg for each try. A standby that is only preferred is tried
    before all servers are."""
    if len(servers) == 1:
        return [{}]
    targets = ["standby", "any"] if target == "prefer-standby" else [target]
    return [
        {"host": host, "port": port, "target_session_attrs": each}
        for each in targets
        for host, port in servers
    ]
