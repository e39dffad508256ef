"""The notifier of a PostgreSQL database: transactions contain NOTIFY, and listeners use LISTEN.

To listen needs a connection that stays one session of the server. Behind a pooler in transaction
mode, a node polls instead, and nodes send no messages to each other. Each schema with tables has
channels and locks of its own, named by the number of its table of tasks.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg

from fairlead.backends.memory.notifier import (
    FinishWatchers,
    OnFinished,
    OnNotification,
    PollingListener,
    ThreadListener,
)
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.low_water import TaskMarks
from fairlead.backends.postgres.polling import Polling
from fairlead.backends.postgres.sessions import STAY, ThreadConnection, setting
from fairlead.model.peer import PeerMessage, recipient_of
from fairlead.ports.notification import ANY_CHANGE, Notification, decode, pieces

log = logging.getLogger("fairlead.notifier")

_NAME_CHANNEL = "SELECT 'fairlead_' || 'fairlead_tasks'::regclass::oid"
"""Name of the channel of a schema, as the statements in task_store.sql compute it."""

MOST_NOTIFY_BYTES = 7900
"""Maximum number of bytes in one NOTIFY; PostgreSQL allows less than 8,000."""

MOST_UNSENT = 1000
"""Maximum number of messages between nodes that wait to be sent; more are dropped."""

KEEPALIVE_EVERY = 10.0
"""Seconds without a notification after which a listening connection is checked."""
KEEPALIVE_TIMEOUT = 5.0
"""Seconds that the check may take."""
FIRST_RETRY, LAST_RETRY = 0.1, 5.0
"""Seconds between two tries to connect: the first pause, and the longest one after doubling."""

LOCK_AGAIN_AFTER = 0.1
"""Seconds until another try of an advisory lock, which an earlier connection may still hold."""

_STAY = setting(STAY, "SET")
_LOCK = """
SELECT pg_try_advisory_lock(
       hashtextextended('fairlead node ' || $1::text, 'fairlead_tasks'::regclass::oid::bigint))
"""
"""Equal names in two schemas have two locks."""
_SEND = """
SELECT pg_notify(channel, message) FROM unnest($1::text[], $2::text[]) AS sent (channel, message)
"""


class PostgresNotifier:
    """A `fairlead.ports.notifier.Notifier` on PostgreSQL.

    `notify` does nothing while this notifier listens, because the transaction's own NOTIFY has sent
    the notification. Messages between nodes go through the connection that listens, many in one
    statement. Without such a connection, `notify` reaches this process only, and polls find the
    rest.
    """

    def __init__(self, database: PostgresDatabase, marks: TaskMarks | None = None) -> None:
        """`marks`: those of the database's task store."""
        self._database = database
        self._marks = marks or TaskMarks()
        self._listening: asyncio.Task[None] | None = None
        self._channel: str | None = None
        """The channel of the schema while connected, else None."""
        self._outbox: list[tuple[str, str]] = []
        """Channel and text of the messages to send."""
        self._wake_up = asyncio.Event()
        """Set when there is something to send or to lock, or the connection is lost."""
        self._locks: dict[str, Callable[[], None]] = {}
        """Nodes whose locks the listening connection holds, with a callback for changes."""
        self._poller: tuple[asyncio.AbstractEventLoop, OnNotification] | None = None
        """Loop and callback while this notifier polls."""
        self._finishes = FinishWatchers(lambda: _listener(database))

    def notify(self, notification: Notification) -> None:
        if (poller := self._poller) is not None:
            loop, on_notification = poller
            with suppress(RuntimeError):  # the loop was closed before the notifier
                loop.call_soon_threadsafe(on_notification, notification)
            self._finishes.notify(notification)

    def send(self, message: PeerMessage) -> None:
        if self._channel is not None and len(self._outbox) < MOST_UNSENT:
            recipient = recipient_of(message)
            channel = self._channel if recipient is None else _own(self._channel, recipient)
            sent = pieces(Notification(peer=message), MOST_NOTIFY_BYTES)
            self._outbox += [(channel, piece.decode()) for piece in sent]
            self._wake_up.set()

    async def listen(self, on_notification: OnNotification, node: str | None = None) -> None:
        """Listen; return after the first try to connect.

        A failed try is repeated in the background until the server responds. Raises RuntimeError if
        this notifier listens already.
        """
        if self._listening is not None:
            raise RuntimeError("this notifier listens already; close it first, or make another")
        tried = asyncio.Event()
        self._listening = asyncio.create_task(
            self._keep_listening(on_notification, node, tried), name="fairlead-notifier"
        )
        await tried.wait()

    async def close(self) -> None:
        self._finishes.close()
        task, self._listening = self._listening, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def hold_lock(self, node: str, on_changed: Callable[[], None]) -> None:
        """Hold the advisory lock of a node while this notifier listens. `on_changed` runs in the
        event loop whenever the lock is acquired, or lost with the connection."""
        self._locks[node] = on_changed
        self._wake_up.set()

    def release_locks(self) -> None:
        """Acquire no lock again; those held end with the connection."""
        self._locks.clear()

    def watch_finished(self, on_finished: OnFinished) -> Callable[[], None]:
        return self._finishes.watch(on_finished)

    async def _keep_listening(
        self, on_notification: OnNotification, node: str | None, tried: asyncio.Event
    ) -> None:
        last_reason = ""
        delay = FIRST_RETRY
        was_connected = False

        def connected() -> None:
            nonlocal last_reason, delay, was_connected
            if last_reason:
                log.info("listening again", extra={"database": self._database.location})
            if last_reason or was_connected:
                on_notification(ANY_CHANGE)
            last_reason, delay, was_connected = "", FIRST_RETRY, True
            tried.set()

        while True:
            try:
                await self._listen_once(node, on_notification, connected)
                reason = "the connection was lost"
            except Exception as error:
                # Try again after any error, so that the node gets notifications again.
                reason = str(error) or type(error).__name__
            if reason != last_reason:
                log.warning(
                    "not listening, trying again",
                    extra={"database": self._database.location, "error": reason},
                )
                last_reason = reason
            tried.set()
            # A random pause, so that not all nodes connect at once to a server that has restarted.
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, LAST_RETRY)

    async def _listen_once(
        self,
        node: str | None,
        on_notification: OnNotification,
        connected: Callable[[], None],
    ) -> None:
        """Listen on one connection until it is lost."""
        connection = await self._database.connect_listening()
        if connection is None:
            await self._poll(on_notification, connected)
            return
        try:
            is_lost = False

            def on_lost(_: object) -> None:
                nonlocal is_lost
                is_lost = True
                self._wake_up.set()

            connection.add_termination_listener(on_lost)
            async with asyncio.timeout(KEEPALIVE_TIMEOUT):
                channel: str = await connection.fetchval(_NAME_CHANNEL)
                for each in [channel] if node is None else [channel, _own(channel, node)]:
                    await connection.add_listener(
                        each, lambda *message: on_notification(decode(message[3]))
                    )
            self._channel = channel
            connected()
            locked: set[str] = set()
            while not is_lost:
                for node_name in self._locks.keys() - locked:
                    if await connection.fetchval(_LOCK, node_name, timeout=KEEPALIVE_TIMEOUT):
                        locked.add(node_name)
                        self._locks[node_name]()
                is_locked = self._locks.keys() <= locked
                try:
                    async with asyncio.timeout(KEEPALIVE_EVERY if is_locked else LOCK_AGAIN_AFTER):
                        await self._wake_up.wait()
                except TimeoutError:
                    await connection.fetchval("SELECT 1", timeout=KEEPALIVE_TIMEOUT)
                self._wake_up.clear()
                if self._outbox and not is_lost:
                    sent, self._outbox = self._outbox, []
                    columns = zip(*sent, strict=True)
                    await connection.execute(_SEND, *columns, timeout=KEEPALIVE_TIMEOUT)
        finally:
            was_connected, self._channel = self._channel is not None, None
            self._outbox.clear()
            if was_connected:
                for on_changed in self._locks.values():
                    on_changed()
            if not connection.is_closed():
                connection.terminate()

    async def _poll(self, on_notification: OnNotification, connected: Callable[[], None]) -> None:
        """Poll until the store is unavailable. Raise StoreUnavailable."""
        polling = Polling(self._database, self._marks)
        await polling.poll()
        self._poller = asyncio.get_running_loop(), on_notification
        connected()
        try:
            while True:
                await asyncio.sleep(polling.pause)
                if (notification := await polling.poll()) is not None:
                    on_notification(notification)
        finally:
            self._poller = None


def _own(channel: str, node: str) -> str:
    """Return the channel of messages to one node, whose name may be longer than a channel's."""
    return f"{channel}_{hashlib.sha256(node.encode()).hexdigest()[:32]}"


def _listener(database: PostgresDatabase) -> ThreadListener:
    connection = database.connect_listening_now()
    return PollingListener() if connection is None else _PostgresListener(connection)


class _PostgresListener:
    """A `ThreadListener` with a connection of its own."""

    def __init__(self, connection: ThreadConnection) -> None:
        self._connection = connection
        try:
            connection.execute(_STAY)
            ((channel,),) = connection.execute(_NAME_CHANNEL).fetchall()
            connection.execute(f"LISTEN {channel}")
        except BaseException:
            connection.close()
            raise
        self._heard_at = time.monotonic()

    def receive(self, timeout: float) -> Sequence[Notification]:
        notifications = [
            decode(message.payload)
            for message in self._connection.notifies(timeout=timeout, stop_after=1)
        ]
        if not notifications and time.monotonic() - self._heard_at < KEEPALIVE_EVERY:
            return ()
        if not notifications:
            self._connection.execute("SELECT 1")  # raises if the connection is dead
        self._heard_at = time.monotonic()
        return notifications

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()
