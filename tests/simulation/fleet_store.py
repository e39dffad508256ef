"""The adapters of a simulated fleet: one SQLite database in memory that all processes share, and
the notifier and the locks of one machine. Every process reaches them through a `Link` of its own,
which can be slow, cut or dead.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TypeVar

from fairlead.backends.memory.notifier import MemoryNotifier, OnNotification
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.backends.sql.drivers import drive, drive_async, executor, executor_async
from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connections import Connections
from fairlead.errors import StoreUnavailable
from fairlead.model.peer import PeerMessage
from fairlead.ports.notification import ANY_CHANGE, Notification
from fairlead.ports.statements import Steps
from tests.simulation.fleet_loop import Process

T = TypeVar("T")

NOTICED_SECONDS = 5.0
"""Seconds after which nodes notice a commit that nobody announced
(`fairlead.backends.sqlite.notifier`)."""


EFFECTS = "CREATE TABLE effects (task INTEGER)"
"""Table of the writes of transactional handlers."""


class Link:
    """The way of one process to the shared database, and what goes wrong on it."""

    def __init__(self, machine: Machine, process: Process | None = None) -> None:
        self.machine = machine
        self.process = process or Process()
        self.is_dead = False
        """Whether the process has ended: none of its calls comes back."""
        self.outage_until = 0.0
        """Time until which calls fail, in seconds of the loop."""
        self.in_transaction = False
        """Whether the process has a transaction open in which it runs code of a user."""

    async def pass_on(self, call: Callable[[], T]) -> T:
        """Make one call to the database, if nothing goes wrong."""
        await self._travel()
        is_lost = self._is_cut()
        if is_lost and self.machine.chance.random() < 0.7:
            raise StoreUnavailable("as wanted")
        await self.machine.until_free()
        result = call()
        if is_lost:
            self.machine.look_everywhere_soon()
            raise StoreUnavailable("as wanted: the response is lost")
        await self._travel()
        return result

    @property
    def is_plain(self) -> bool:
        """Whether a read takes no time and needs no luck, as on a file of the same machine."""
        machine = self.machine
        return not (machine.latency or self.is_dead or self._is_cut()) and machine.is_free.is_set()

    def _is_cut(self) -> bool:
        return asyncio.get_running_loop().time() < self.outage_until

    async def _travel(self) -> None:
        if self.is_dead:
            await _for_ever()
        seconds = self.machine.latency
        await asyncio.sleep(seconds and seconds * self.machine.chance.random())
        if self.is_dead:
            await _for_ever()

    async def begin(self) -> None:
        """Take the right to write for a transaction of several calls."""
        await self._travel()
        if self._is_cut():
            raise StoreUnavailable("as wanted")
        await self.machine.until_free()
        self.machine.is_free.clear()
        self.in_transaction = True

    def end(self) -> None:
        """Give back the right to write."""
        self.in_transaction = False
        self.machine.is_free.set()


async def _for_ever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


class Machine:
    """The shared state of all processes: database, locks and listeners. Latencies and losses are
    drawn from `chance`; `latency`: most seconds of one way to the database; `loss`: share of
    the notifications and messages that are lost."""

    def __init__(self, chance: random.Random, latency: float = 0.0, loss: float = 0.0) -> None:
        self.chance = chance
        self.latency = latency
        self.loss = loss
        self.database = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=512
        )
        self.database.deserialize(_migrated())
        self.database.execute("PRAGMA journal_mode = MEMORY")
        self.execute = executor(self.database)
        self.is_free = asyncio.Event()
        """Cleared while a process has a transaction of several calls open. Readers wait for its end
        too, because all processes share one connection."""
        self.is_free.set()
        self.notifier = MemoryNotifier()
        self._is_look_due = False
        """Whether the nodes are about to look for commits that nobody announced."""
        self.locks: dict[str, Link | None] = {}
        """Holder of the lock of each node; None after its process ended without leaving."""

    async def until_free(self) -> None:
        """Wait until no process has a transaction open. An event and not a lock: a stopped process
        that waits must not keep the others from their turn."""
        while not self.is_free.is_set():
            await self.is_free.wait()

    def look_everywhere_soon(self) -> None:
        """Let the nodes notice, in time, a commit that its process could not announce."""
        if not self._is_look_due:
            self._is_look_due = True
            seconds = self.chance.uniform(0.0, NOTICED_SECONDS)
            asyncio.get_running_loop().call_later(seconds, self._look_everywhere)

    def _look_everywhere(self) -> None:
        self._is_look_due = False
        self.notifier.notify(ANY_CHANGE)

    def end(self, link: Link) -> None:
        """End a process as kill -9 does: release its locks, and let no call of it come back."""
        link.is_dead = True
        for node, holder in self.locks.items():
            if holder is link:
                self.locks[node] = None
        self.look_everywhere_soon()

    def connections(self, link: Link) -> Connections:
        """Return adapters for one process."""
        store = SqliteTaskStore(FleetDatabase(link))  # type: ignore[arg-type]
        notifier = FleetNotifier(link)
        return Connections(
            cluster=store,
            backlog=None,
            notifier=notifier,
            channel=DatabaseChannel(store, notifier, SYSTEM_CLOCK),
            coordinator=DatabaseCoordinator(store),
            log=None,
            schedule=None,
            presence=FleetPresence(link),
            new_log=lambda: None,
        )


@cache
def _migrated() -> bytes:
    """Return the image of an empty, migrated database."""
    with TemporaryDirectory() as folder:
        database = SqliteDatabase(f"{folder}/tasks.db", synchronous="OFF")
        migrate(database)
        with database.connection() as connection:
            connection.execute(EFFECTS)
            connection.execute("PRAGMA journal_mode = DELETE")  # memory has no write-ahead log
            image = connection.serialize()
        database.close()
        return image


class FleetDatabase:
    """A `fairlead.ports.statements.SqlDatabase` of one process, on the shared connection."""

    dialect = "sqlite"
    has_one_writer = True
    location = "the database of the fleet"
    __module__ = SqliteDatabase.__module__  # where its statements are

    def __init__(self, link: Link) -> None:
        self._link = link
        self._machine = link.machine

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._machine.database
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[sqlite3.Connection]:
        await self._link.begin()
        try:
            with self.transaction() as connection:
                yield connection
        finally:
            self._link.end()

    def delete_statistics(self) -> None:
        """Do nothing: nobody runs ANALYZE here."""

    def run(self, steps: Steps[T]) -> T:
        with self.transaction():
            return drive(steps, self._machine.execute)

    def read_now(self, steps: Steps[T]) -> T:
        return drive(steps, self._machine.execute)

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        return await self._link.pass_on(lambda: self.run(steps))

    async def run_quickly(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._link.pass_on(lambda: self.run(steps()))

    async def read(self, steps: Steps[T], *, together: bool = False) -> T:
        if self._link.is_plain:
            return drive(steps, self._machine.execute)
        return await self._link.pass_on(lambda: self.read_now(steps))

    def join(self, connection: Any, steps: Steps[T]) -> T:
        return drive(steps, executor(connection))

    async def join_async(self, connection: Any, steps: Steps[T]) -> T:
        return await drive_async(steps, await executor_async(connection))

    complete, complete_async = join, join_async

    def connections(self) -> None:
        """Return None: the database is a file."""

    def memory(self) -> None:
        """Return None: the database has no such limits."""

    async def close_async(self) -> None:
        """Do nothing: all processes share the connection."""

    async def close_loop(self) -> None:
        """Do nothing: all processes share the connection."""

    def close(self) -> None:
        """Do nothing: all processes share the connection."""


class FleetNotifier(MemoryNotifier):
    """A notifier whose listener runs in its own process, and stops with it."""

    def __init__(self, link: Link) -> None:
        super().__init__(beside=link.machine.notifier)
        self._link = link

    def notify(self, notification: Notification) -> None:
        if self._is_delivered():
            super().notify(notification)

    def send(self, message: PeerMessage) -> None:
        if self._is_delivered():
            super().send(message)

    def _is_delivered(self) -> bool:
        machine = self._link.machine
        return not self._link.is_dead and not (
            machine.loss and machine.chance.random() < machine.loss
        )

    async def listen(self, on_notification: OnNotification, node: str | None = None) -> None:
        loop, link = asyncio.get_running_loop(), self._link

        def receive(notification: Notification) -> None:
            if not link.is_dead:
                loop.call_soon(on_notification, notification, context=link.process.context)

        await super().listen(receive, node)


class FleetPresence:
    """A `fairlead.ports.presence.Presence`: locks that end with their process."""

    confirm_seconds = 0.0
    check_seconds = 0.25

    def __init__(self, link: Link) -> None:
        self._link = link

    async def hold(self, node: str, on_changed: Callable[[], None]) -> None:
        self._link.machine.locks[node] = self._link

    async def released(self, nodes: Collection[str]) -> set[str]:
        locks = self._link.machine.locks
        return {node for node in nodes if node in locks and locks[node] is None}

    async def close(self) -> None:
        locks = self._link.machine.locks
        for node in [node for node, holder in locks.items() if holder is self._link]:
            del locks[node]
