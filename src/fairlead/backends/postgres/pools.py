"""Pools of connections: one for the threads of a process, and two for each event loop."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg
import psycopg

from fairlead.backends.postgres.sessions import Kind, LoopConnection, ThreadConnection
from fairlead.errors import StoreUnavailable
from fairlead.forks import drop_when_forked

IDLE_SECONDS = 15.0
"""Seconds without use after which a connection is closed."""

PATIENCE = 0.5
"""Seconds that statements of a node may wait, in sum, for connections that others use. Then another
connection is opened. So short statements that meet at rest share one."""
PATIENCE_RATE = 0.1
"""Seconds of patience that each second gives back."""


class ThreadPool:
    """Idle psycopg connections, last used first. At most `most` connections are lent at once."""

    def __init__(self, connect: Callable[[], ThreadConnection], most: int) -> None:
        self._connect = connect
        self._most = most
        self._idle: list[tuple[float, ThreadConnection]] = []
        """Monotonic seconds of the last use, and the connection."""
        self._inherited: list[tuple[float, ThreadConnection]] = []
        self._permits = threading.BoundedSemaphore(most)
        drop_when_forked(self)

    def after_fork(self) -> None:
        # Sockets of the parent: never use or close them.
        self._inherited += self._idle
        self._idle, self._permits = [], threading.BoundedSemaphore(self._most)

    @contextmanager
    def lend(self) -> Iterator[ThreadConnection]:
        """Lend an idle connection, or a new one, for the block. A connection that is left inside a
        transaction, or that cannot be restored, is closed."""
        with self._permits:
            connection = self._take() or self._connect()
            connection.is_patient = False
            try:
                yield connection
            finally:
                if (
                    not connection.closed
                    and not connection.is_spoiled
                    and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                ):
                    self._idle.append((time.monotonic(), connection))
                else:
                    connection.close()
                self.close_unused()

    def _take(self) -> ThreadConnection | None:
        while True:
            try:
                _, connection = self._idle.pop()
            except IndexError:
                return None
            if _is_alive(connection):
                return connection
            connection.close()

    def close_unused(self) -> None:
        """Close the connections that nothing has used for IDLE_SECONDS."""
        before = time.monotonic() - IDLE_SECONDS
        while self._idle and self._idle[0][0] < before:
            try:
                used_at, connection = self._idle.pop(0)
            except IndexError:  # another thread was faster
                return
            if used_at < before:
                connection.close()
            else:
                self._idle.append((used_at, connection))

    def close(self) -> None:
        """Close all idle connections."""
        while (connection := self._take()) is not None:
            connection.close()


@dataclass(slots=True)
class _Idle:
    used_at: float
    """Seconds of the loop's clock."""
    kind: Kind
    connection: LoopConnection


class LoopPool:
    """Idle asyncpg connections of one event loop, last used first, so that a few busy connections
    have their statements prepared.

    NODE and RELAXED connections differ by one setting, which is changed when the pool is full.
    HANDLER connections are lent for as long as handlers run, so nothing waits for one to come back
    while another may be opened.
    """

    def __init__(
        self,
        connect: Callable[[Kind], Awaitable[LoopConnection]],
        change: Callable[[LoopConnection, Kind], Awaitable[None]],
        on_unused: Callable[[], None],
        make_room: Callable[[LoopPool], None],
        most: int,
    ) -> None:
        """`change`: makes a NODE connection a RELAXED one, or the reverse. `on_unused`: closes the
        unused connections of threads. `make_room`: closes the idle connections of other pools."""
        self._connect = connect
        self._change = change
        self._on_unused = on_unused
        self._make_room = make_room
        self._most = most
        self._idle: list[_Idle] = []
        self._permits = asyncio.Semaphore(most)
        self._lent: Counter[Kind] = Counter()
        """Connections that are lent or being opened."""
        self._returned = asyncio.Event()
        """Set for a moment when one comes back."""
        self._loop = asyncio.get_running_loop()
        self._patience, self._patience_at = PATIENCE, self._loop.time()
        """Seconds left to wait, and when that was known, in seconds of the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, kind: Kind) -> LoopConnection:
        """Return an idle connection, one that comes back soon, or a new one. If the pool is full,
        or the server allows no more connections, change one of another kind. Raise
        StoreUnavailable."""
        await self._permits.acquire()
        try:
            found = self._take(kind) or await self._wait(kind)
        except BaseException:
            self._permits.release()
            raise
        self._lent[kind] += 1
        if found is not None:
            return found
        opening = self._loop.create_task(self._open(kind))
        try:
            return await asyncio.shield(opening)
        except BaseException:
            # Let it end, because asyncpg does not see all errors of a connection that is cancelled.
            opening.add_done_callback(partial(self._on_unwanted, kind))
            raise

    async def _wait(self, kind: Kind) -> LoopConnection | None:
        """Return a connection of this kind that comes back while patience lasts."""
        if kind is Kind.HANDLER or not self._lent[kind]:
            return None
        began, found = self._loop.time(), None
        gained = (began - self._patience_at) * PATIENCE_RATE
        self._patience, self._patience_at = min(PATIENCE, self._patience + gained), began
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while found is None and self._lent[kind]:
                    await self._returned.wait()
                    found = self._take(kind)
        self._patience = max(0.0, self._patience - (self._loop.time() - began))
        return found

    async def _open(self, kind: Kind) -> LoopConnection:
        if len(self._idle) + self._lent.total() <= self._most:
            try:
                return await self._connect(kind)
            except StoreUnavailable:
                if not self._idle:
                    self._make_room(self)  # for the next try
                    raise
        if (found := self._take()) is None:
            return await self._connect(kind)
        try:
            await self._change(found, kind)
        except BaseException:
            found.terminate()
            raise
        return found

    def _on_unwanted(self, kind: Kind, opening: asyncio.Task[LoopConnection]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self._on_returned(kind)
        else:
            self.release(kind, opening.result(), is_cut_off=False)

    def _on_returned(self, kind: Kind) -> None:
        self._lent[kind] -= 1
        self._permits.release()
        self._returned.set()
        self._returned.clear()

    def _take(self, kind: Kind | None = None) -> LoopConnection | None:
        """Remove the connection of this kind that was used last; None: of any kind."""
        for number in range(len(self._idle) - 1, -1, -1):
            if kind is None or self._idle[number].kind is kind:
                found = self._idle.pop(number).connection
                if not found.is_closed():
                    return found
        return None

    def release(self, kind: Kind, connection: LoopConnection, is_cut_off: bool) -> None:
        """Take the connection back. A connection that was cut off during its work is dropped, so
        that the server undoes the work."""
        if not connection.is_closed():
            if is_cut_off or connection.is_in_transaction():
                connection.terminate()
            else:
                self._keep(kind, connection)
        self._on_returned(kind)

    def _keep(self, kind: Kind, connection: LoopConnection) -> None:
        self._idle.append(_Idle(self._loop.time(), kind, connection))
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._close_unused)

    def _close_unused(self) -> None:
        before = self._loop.time() - IDLE_SECONDS
        unused = [idle for idle in self._idle if idle.used_at <= before]
        self._idle = [idle for idle in self._idle if idle.used_at > before]
        for idle in unused:
            idle.connection.terminate()
        self._on_unused()
        self._timer = (
            self._loop.call_later(IDLE_SECONDS, self._close_unused) if self._idle else None
        )

    async def close(self) -> None:
        for connection in self._empty():
            try:
                await connection.close(timeout=2)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    def terminate(self) -> None:
        """Close the idle connections from any thread, without waiting for the server, also if their
        loop does not run."""
        for connection in self._empty():
            if self._loop.is_running():
                self._loop.call_soon_threadsafe(connection.terminate)
            else:
                connection.end_session()

    def _empty(self) -> list[LoopConnection]:
        idle, self._idle = self._idle, []
        return [each.connection for each in idle]


def _is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the connection is usable, by its socket only, without a round trip.

    A server that sent something to an idle connection has usually closed it.
    """
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
