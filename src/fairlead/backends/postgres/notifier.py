"""The notifier of a PostgreSQL database: NOTIFY inside the transactions themselves, and whoever
listens.

Listening needs a connection that stays one server session: a pooler in transaction mode cannot
carry it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import asyncpg
import psycopg

from fairlead.backends.memory.notifier import OnNotification, WaitingThreads
from fairlead.ports.notification import LOOK_EVERYWHERE, Notification, decode

log = logging.getLogger("fairlead.notifier")

NOTIFY_CHANNEL = "fairlead_wake"

KEEPALIVE_EVERY = 10.0
"""Seconds of silence after which a listening connection must show that it is alive."""
KEEPALIVE_TIMEOUT = 5.0
"""Seconds it has for that."""
FIRST_RETRY, LAST_RETRY = 0.1, 5.0
"""Seconds between two tries to connect, doubled each time up to the last."""
# seconds after which waiting threads listen on a new connection: the old one may have died silently
_SILENCE = 60.0


class Connects(Protocol):
    """What the notifier needs of a PostgresDatabase."""

    @property
    def location(self) -> str:
        """Which database, for log lines; no secrets."""

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection in autocommit, for threads."""

    async def connect_async(self) -> asyncpg.Connection:
        """A new connection for the event loop."""


class PostgresNotifier:
    """See `fairlead.ports.trigger_channel.Notifier`. `ring` does nothing: the transaction's own
    NOTIFY carried the wake."""

    def __init__(self, database: Connects) -> None:
        self._database = database
        self._listening: asyncio.Task[None] | None = None
        self._waiting = WaitingThreads(lambda: _PostgresListener(database))

    def notify(self, notification: Notification) -> None:
        pass

    async def listen(self, on_notification: OnNotification) -> None:
        """Returns after the first try to connect; one that failed is repeated until the server
        answers."""
        if self._listening is not None:
            raise RuntimeError("this notifier listens already; close it first, or make another")
        tried = asyncio.Event()
        self._listening = asyncio.create_task(
            self._keep_listening(on_notification, tried), name="fairlead-notifier"
        )
        await tried.wait()

    async def close(self) -> None:
        self._waiting.close()
        task, self._listening = self._listening, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wait_finished(self, task_id: str, timeout: float) -> None:
        self._waiting.wait(task_id, timeout)

    async def _keep_listening(self, on_notification: OnNotification, tried: asyncio.Event) -> None:
        trouble = ""
        delay = FIRST_RETRY
        was_connected = False

        def connected() -> None:
            nonlocal trouble, delay, was_connected
            if trouble:
                log.info("listening again", extra={"database": self._database.location})
            if trouble or was_connected:
                on_notification(LOOK_EVERYWHERE)
            trouble, delay, was_connected = "", FIRST_RETRY, True
            tried.set()

        while True:
            try:
                await self._listen_once(on_notification, connected)
                reason = "the connection was lost"
            except Exception as error:
                # Whatever it was: a node must not stay deaf.
                reason = str(error) or type(error).__name__
            if reason != trouble:
                log.warning(
                    "not listening, trying again",
                    extra={"database": self._database.location, "error": reason},
                )
                trouble = reason
            tried.set()
            # Not all nodes at the same moment: the server has just come back.
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, LAST_RETRY)

    async def _listen_once(
        self, on_notification: OnNotification, connected: Callable[[], None]
    ) -> None:
        """Listen on one connection until it is lost."""
        connection = await self._database.connect_async()
        try:
            is_lost = asyncio.Event()
            connection.add_termination_listener(lambda _: is_lost.set())
            async with asyncio.timeout(KEEPALIVE_TIMEOUT):
                await connection.add_listener(
                    NOTIFY_CHANNEL, lambda *message: on_notification(decode(message[3]))
                )
            connected()
            while not is_lost.is_set():
                try:
                    async with asyncio.timeout(KEEPALIVE_EVERY):
                        await is_lost.wait()
                except TimeoutError:
                    await connection.fetchval("SELECT 1", timeout=KEEPALIVE_TIMEOUT)
        finally:
            if not connection.is_closed():
                connection.terminate()


class _PostgresListener:
    """The ear of threads: a connection of its own."""

    def __init__(self, database: Connects) -> None:
        self._database = database
        self._connection = self._listen()

    def _listen(self) -> psycopg.Connection[Any]:
        connection = self._database.connect()
        try:
            connection.execute(f"LISTEN {NOTIFY_CHANNEL}")
        except BaseException:
            connection.close()
            raise
        self._heard_at = time.monotonic()
        return connection

    def receive(self, timeout: float) -> Sequence[Notification]:
        notifications = [
            decode(message.payload)
            for message in self._connection.notifies(timeout=timeout, stop_after=1)
        ]
        if notifications:
            self._heard_at = time.monotonic()
        elif time.monotonic() - self._heard_at > _SILENCE:
            old, self._connection = self._connection, self._listen()
            old.close()
            return (LOOK_EVERYWHERE,)
        return notifications

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()
