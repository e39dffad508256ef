"""A SQLite file: connections, transactions, and the single writer."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fairlead.backends.sql.drivers import drive, executor, join, join_async
from fairlead.backends.sql.migrate import CURE
from fairlead.backends.sqlite.file_modes import check_place, create_database
from fairlead.backends.sqlite.wal_file import WalFile
from fairlead.backends.sqlite.writer_lock import WriterLock
from fairlead.errors import ConfigurationError, SchemaMismatch, StoreRefused, StoreUnavailable
from fairlead.forks import drop_when_forked, free_when_forked
from fairlead.ports.statements import Steps

T = TypeVar("T")

_MISSING_COLUMN = re.compile(r"^no such column|has no column named")

_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""Codes of errors that may pass: a lock held too long, a full disk, a disk that fails."""

CHECKPOINT_PAGES = 16_000
"""Pages in the write-ahead log (64 MiB) at which SQLite copies the log into the file. With a high
number, a page that changes often is copied less often."""

FEWEST_PAGES = 100
"""Pages at which SQLite does so on a volume that is nearly full."""

_PAGE_BYTES = 4096
_PART_OF_ROOM = 8

CACHE_KIB = 8192
"""Page cache of each connection, in KiB; a worker has three connections."""

_STATISTICS = "SELECT name FROM sqlite_schema WHERE name IN ('sqlite_stat1', 'sqlite_stat4')"
_OURS = {
    "sqlite_stat1": (
        "SELECT 1 FROM sqlite_stat1 WHERE tbl GLOB 'fairlead_*' LIMIT 1",
        "DELETE FROM sqlite_stat1 WHERE tbl GLOB 'fairlead_*'",
    ),
    "sqlite_stat4": (
        "SELECT 1 FROM sqlite_stat4 WHERE tbl GLOB 'fairlead_*' LIMIT 1",
        "DELETE FROM sqlite_stat4 WHERE tbl GLOB 'fairlead_*'",
    ),
}
"""Statements that find and delete the statistics of our tables, by the table that has them."""

BUSY_TIMEOUT = 30.0
"""Seconds that a connection waits for the lock of another one."""

OLDEST_SQLITE = (3, 38, 0)  # the JSON operator ->>


class SqliteDatabase:
    """Connections to one SQLite file in WAL mode.

    Writes of the event loop go through one thread that puts all waiting writes into one transaction
    (group commit), so many batches cost one fsync. `synchronous` has SQLite's values. With FULL,
    the default, and EXTRA, an acknowledged transaction survives a power cut: connections commit
    with NORMAL, and the write-ahead log is flushed after the writer lock was released (`WalFile`).
    Raises ConfigurationError for another value of `synchronous`, and for a SQLite older than 3.38.
    """

    dialect = "sqlite"
    has_one_writer = True

    def __init__(self, path: str | Path, synchronous: str = "FULL") -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old; 3.38 or later is needed"
            )
        self.path = Path(path).absolute()  # a handler may change the working directory
        self.location = str(path)
        self._wal = WalFile(synchronous)
        self.busy_timeout = BUSY_TIMEOUT
        self._idle: deque[sqlite3.Connection] = deque()
        self._reader: sqlite3.Connection | None = None
        self._quick: sqlite3.Connection | None = None
        self._of_parent: list[sqlite3.Connection] = []
        """Connections of the process that forked this one, not closed yet."""
        self._busy_in_parent: list[sqlite3.Connection | None] = []
        """Connections that a thread of that process may have used at the fork: never closed here,
        since SQLite would wait for that thread."""
        self.writer_lock = WriterLock(self.path)
        self._writer = _Writer(self)
        self._closing = free_when_forked(threading.Lock())
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        drop_when_forked(self)

    def after_fork(self) -> None:
        self._of_parent += self._idle
        self._busy_in_parent += self._reader, self._quick
        self._idle, self._reader, self._quick = deque(), None, None
        self._writer = _Writer(self)

    def _close_those_of_parent(self) -> None:
        """Close the connections of the parent. While they are open, SQLite takes the parent's locks
        for those of this process, and others may delete the write-ahead log that it uses."""
        with self._closing:
            for connection in self._of_parent:
                connection.close()
            self._of_parent = []

    def connect(self) -> sqlite3.Connection:
        """Return a new connection with our settings, which the caller closes.

        Raise StoreRefused if the file cannot be opened, StoreUnavailable if that may pass,
        ConfigurationError if other users may replace it.
        """
        if self._of_parent:
            self._close_those_of_parent()
        check_place(self.path)
        create_database(self.path)
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self.busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            _use_wal(connection, self.busy_timeout)
            connection.execute(f"PRAGMA synchronous = {self._wal.in_commit}")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA foreign_keys = ON")  # for the tables of handlers
            pages = _checkpoint_pages(self.path)
            connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
            connection.execute(f"PRAGMA journal_size_limit = {pages * _PAGE_BYTES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._wal.find(connection)
        except sqlite3.Error as error:
            passes = getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
            kind = StoreUnavailable if passes else StoreRefused
            folder = self.path.parent
            why = error if folder.is_dir() else f"there is no folder {folder}"
            raise kind(f"cannot open {self.path}: {why}") from error
        return connection

    def _take(self) -> sqlite3.Connection:
        try:
            return _restore(self._idle.pop())
        except IndexError:
            return self.connect()

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend an idle connection, or a new one, for the block."""
        connection = self._take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self.connection() as connection:
            with failures():
                held = self.writer_lock.acquire()
            try:
                with transaction(connection):
                    yield connection
            finally:
                self.writer_lock.release(held)
            self.flush()

    def flush(self) -> None:
        """Make the transactions committed so far survive a power cut, if `synchronous` asks for it.

        The caller has released the writer lock, so that other writers commit meanwhile, and the
        kernel can serve concurrent flushes together. Raise StoreUnavailable if the disk refuses.
        """
        with failures():
            self._wal.flush()

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[sqlite3.Connection]:
        # One transaction at a time in this process, and a thread waits for SQLite's lock: a second
        # transaction that waited for the lock on the event loop would block the end of the first.
        async with self._transaction_lock():
            begun = _Begun(self._begin, self._end)
            connection, held = await begun.wait()
            try:
                yield connection
                with failures():
                    await _to_the_end(connection.execute, "COMMIT")
            finally:
                self._end(connection, held)
            await _to_the_end(self.flush)

    def _end(self, connection: sqlite3.Connection, held: int | None) -> None:
        """Roll back the open transaction, so that other connections can write."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._idle.append(connection)
        except sqlite3.ProgrammingError:
            pass  # the caller has closed the connection, and so rolled back
        finally:
            self.writer_lock.release(held)

    def _begin(self) -> tuple[sqlite3.Connection, int | None]:
        connection = self._take()
        try:
            with failures():
                held = self.writer_lock.acquire()
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except BaseException:
                    self.writer_lock.release(held)
                    raise
        except BaseException:
            connection.close()
            raise
        return connection, held

    def _transaction_lock(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        lock = self._locks.get(loop)
        if lock is None:
            lock = self._locks[loop] = asyncio.Lock()
        return lock

    def run(self, steps: Steps[T], is_patient: bool = False) -> T:
        with self.transaction() as connection, failures():
            return drive(steps, executor(connection))

    def read_now(self, steps: Steps[T]) -> T:
        with self.connection() as connection, failures():
            return drive(steps, executor(connection))

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        """Run the steps in a transaction of the writer thread.

        With `durable=False`, a power cut (not a crash of the process) may undo the transaction,
        unless a later one was durable.
        """
        return await asyncio.wrap_future(self._writer.enqueue(steps, durable))

    async def run_quickly(self, steps: Callable[[], Steps[T]]) -> T:
        """Run a few cheap steps in a transaction that need not be durable.

        If the lock is free, they run here on the event loop, which saves two changes of thread;
        otherwise the writer thread runs them.
        """
        if self._quick is None:
            self._quick = self.connect()
            for setting in ("busy_timeout = 0", "wal_autocheckpoint = 0"):
                # No checkpoint here, because it takes long: the writer's connection does it.
                self._quick.execute(f"PRAGMA {setting}")
        with failures():
            held = self.writer_lock.acquire(wait=False)
        if held is None:
            return await self.run_async(steps(), durable=False)
        try:
            try:
                self._quick.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:  # held by a writer without our lock
                self.writer_lock.release(held)
                held = None
                return await self.run_async(steps(), durable=False)
            try:
                with failures():
                    result = drive(steps(), executor(self._quick))
                    self._quick.execute("COMMIT")
            finally:
                if self._quick.in_transaction:
                    self._quick.execute("ROLLBACK")
            return result
        finally:
            self.writer_lock.release(held)

    async def read(self, steps: Steps[T], *, together: bool = False) -> T:
        # In WAL mode a reader never waits for a writer, so reading here is faster than in a thread.
        if self._reader is None:
            self._reader = self.connect()
        with failures():
            return drive(steps, executor(self._reader))

    def join(self, connection: Any, steps: Steps[T]) -> T:
        return join(connection, steps)

    async def join_async(self, connection: Any, steps: Steps[T]) -> T:
        return await join_async(connection, steps)

    def complete(self, connection: sqlite3.Connection, steps: Steps[T]) -> T:
        _restore(connection)
        return self.join(connection, steps)

    async def complete_async(self, connection: sqlite3.Connection, steps: Steps[T]) -> T:
        return self.complete(connection, steps)

    def delete_statistics(self) -> None:
        """Delete what ANALYZE has stored about our tables. SQLite would take it for their sizes of
        today, and read whole tables if they were small when somebody ran ANALYZE."""
        with self.connection() as connection:
            kept = [_OURS[table] for (table,) in connection.execute(_STATISTICS)]
            delete = [delete for find, delete in kept if connection.execute(find).fetchone()]
        if not delete:
            return
        with self.transaction() as connection:
            for statement in delete:
                connection.execute(statement)
        # A connection reads the statistics once.
        while self._idle:
            self._idle.pop().close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def connections(self) -> None:
        """Return None: the database is a file."""

    def memory(self) -> None:
        """Return None: the database has no such limits."""

    async def close_async(self) -> None:
        await asyncio.to_thread(self.close)

    async def close_loop(self) -> None:
        """Do nothing: all loops share the connections."""

    def close(self) -> None:
        """Finish the waiting writes, then close every idle connection."""
        self._writer.close()
        for own in (self._reader, self._quick):
            if own is not None:
                own.close()
        self._reader = self._quick = None
        while self._idle:
            self._idle.pop().close()
        self.writer_lock.close()


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Switch to WAL mode. Raise sqlite3.OperationalError if others hold the file for longer than
    `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
        # SQLite fails at once if several processes open a new file, because they could wait for
        # each other forever.
        time.sleep(0.02)


def _checkpoint_pages(path: Path) -> int:
    """Return the pages that the write-ahead log may have before it is copied: an eighth of the room
    of a small volume, so that the log leaves the copy the room that it needs."""
    room = shutil.disk_usage(path.parent).free // _PART_OF_ROOM // _PAGE_BYTES
    return max(FEWEST_PAGES, min(CHECKPOINT_PAGES, room))


def _restore(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Undo what a handler may have changed in the form of rows."""
    connection.row_factory, connection.text_factory = None, str
    return connection


@contextmanager
def failures() -> Iterator[None]:
    """Raise StoreUnavailable in place of SQLite's outages: a lock held too long, a full disk, a
    missing file. Raise SchemaMismatch for a missing column."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if _MISSING_COLUMN.search(str(error)):
            raise SchemaMismatch(f"SQLite: {error}; {CURE}") from error
        raise StoreUnavailable(f"SQLite: {error}") from error
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        raise StoreUnavailable(f"SQLite: {error}") from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block between BEGIN IMMEDIATE and COMMIT; after an exception, roll back and raise it
    unchanged."""
    with failures():
        connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        with failures():
            connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class _Begun:
    """A transaction begun in a thread. If its caller is cancelled meanwhile, the thread ends the
    transaction, which nobody else could end."""

    def __init__(
        self,
        begin: Callable[[], tuple[sqlite3.Connection, int | None]],
        end: Callable[[sqlite3.Connection, int | None], None],
    ) -> None:
        self._begin = begin
        self._end = end
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._result: tuple[sqlite3.Connection, int | None] | None = None

    async def wait(self) -> tuple[sqlite3.Connection, int | None]:
        """Begin, and return the connection and the handle of the writer lock."""
        try:
            await asyncio.to_thread(self._run)
        except BaseException:
            with self._lock:
                self._is_abandoned = True
                result, self._result = self._result, None
            if result is not None:
                self._end(*result)
            raise
        assert self._result is not None
        return self._result

    def _run(self) -> None:
        result = self._begin()
        with self._lock:
            if not self._is_abandoned:
                self._result = result
                return
        self._end(*result)


async def _to_the_end(call: Callable[..., Any], *arguments: Any) -> None:
    """Run a call in a thread, and wait for its end even if the caller is cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


_Work = tuple[Steps[Any], bool, Future[Any]]
_Outcome = tuple[Future[Any], Any, BaseException | None]


class _Writer:
    """The thread that writes for the event loop and puts all waiting writes into one
    transaction."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._waiting: deque[_Work] = deque()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        """The current thread; a former one ends when no write waits."""

    def enqueue(self, steps: Steps[T], durable: bool) -> Future[T]:
        future: Future[T] = Future()
        with self._condition:
            self._waiting.append((steps, durable, future))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fairlead-sqlite-writer", daemon=True
                )
                self._thread.start()
            self._condition.notify_all()
        return future

    def close(self) -> None:
        with self._condition:
            thread, self._thread = self._thread, None
            self._condition.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            # The file cannot be opened. Fail all waiting writes; the next one starts a new thread.
            with self._condition:
                if self._is_current():
                    self._thread = None
                waiting = list(self._waiting)
                self._waiting.clear()
            for _, _, future in waiting:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def _serve(self) -> None:
        with self._database.connection() as connection:
            while True:
                with self._condition:
                    while not self._waiting and self._is_current():
                        self._condition.wait()
                    if not self._waiting:
                        break
                # Take the lock first, so that the batch includes all writes that arrived while
                # another process wrote.
                held = self._database.writer_lock.acquire()
                with self._condition:
                    batch = list(self._waiting)
                    self._waiting.clear()
                batch = [entry for entry in batch if entry[2].set_running_or_notify_cancel()]
                outcome = self._write(connection, batch)
                self._database.writer_lock.release(held)
                if any(durable for _, durable, _ in batch):
                    outcome = self._flushed(outcome)
                for future, result, failure in outcome:
                    if failure is None:
                        future.set_result(result)
                    else:
                        future.set_exception(failure)

    def _flushed(self, outcome: list[_Outcome]) -> list[_Outcome]:
        """Flush, and return the outcome. If the flush fails, return the error for every write,
        because none is certain to be durable."""
        try:
            self._database.flush()
        except StoreUnavailable as error:
            return [(future, None, failure or error) for future, _, failure in outcome]
        return outcome

    def _write(self, connection: sqlite3.Connection, batch: list[_Work]) -> list[_Outcome]:
        """Run the batch in one transaction, with a savepoint for each entry, so that a failed entry
        undoes no other."""
        execute = executor(connection)
        outcome: list[_Outcome] = []
        try:
            with failures(), transaction(connection):
                for steps, _, future in batch:
                    if len(batch) > 1:
                        connection.execute("SAVEPOINT work")
                    try:
                        outcome.append((future, drive(steps, execute), None))
                    except Exception as error:
                        if len(batch) == 1 or not connection.in_transaction:
                            raise
                        connection.execute("ROLLBACK TO work")
                        outcome.append((future, None, error))
                    if len(batch) > 1:
                        connection.execute("RELEASE work")
        except Exception as error:
            return [(future, None, error) for _, _, future in batch]
        return outcome
