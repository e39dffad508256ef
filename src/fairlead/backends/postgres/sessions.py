"""Sessions: connections that handlers may use, and are as new before the next one gets them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

import asyncpg
import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from fairlead.backends.sql.sql_file import load

T = TypeVar("T")

LATE = (
    "no response within response_timeout: the connection is dead, the server is overloaded, or"
    " another session holds a lock; write response_timeout=SECONDS in the URL for another limit"
)
"""Error of a statement that was given up. What it has written may exist."""

CANCEL_SECONDS = 2.0
"""Seconds in which the server can cancel a statement that was given up."""

PREPARE_THRESHOLD = 2
"""Uses of a statement by psycopg before it is prepared."""

_NODE_SETTINGS = {
    # The statements carry their plans in their shape (task_store.sql), so no way of planning is
    # turned off. A count over a long table would be compiled for longer than it runs.
    "jit": "off",
}


# A user's statements are planned by the server's own settings. The time limit of the task bounds a
# handler's transaction, which may wait for other services.
_HANDLER_SETTINGS = {"idle_in_transaction_session_timeout": "0"}

STAY = {"idle_session_timeout": "0"}
"""Settings of every connection that keeps its session: a pool closes its own idle connections."""


class Kind(Enum):
    """Purpose of an asynchronous connection; the value has its server settings."""

    NODE = _NODE_SETTINGS
    RELAXED = _NODE_SETTINGS | {"synchronous_commit": "off"}
    HANDLER = _HANDLER_SETTINGS


def setting(settings: dict[str, str], command: str) -> str:
    """Return statements that set these settings by `command`, SET or SET LOCAL."""
    return "; ".join(f"{command} {name} TO '{value}'" for name, value in settings.items())


SQL = load("sessions.sql", __package__)


class ThreadConnection(psycopg.Connection[Any]):
    """A psycopg connection whose Python state can be restored."""

    response_timeout: float | None = None
    """Seconds without any response after which a statement is given up; None: without limit."""
    is_patient = False
    """Whether statements now take as long as they take, because they are those of a handler or of
    a migration."""
    is_restored = False
    """Whether nothing has used the connection since its session was restored."""
    is_spoiled = False
    """Whether a handler has added what cannot be removed, such as a listener for notices."""
    _map: AdaptersMap | None = None

    @property
    def adapters(self) -> AdaptersMap:
        """Adapters of this connection, until it is restored."""
        if self._map is None:
            self._map = AdaptersMap(psycopg.adapters)
        return self._map

    def wait(self, gen: Generator[Any, Any, T], *more: Any, **named: Any) -> T:
        """Carry out a step of the driver. If nothing comes from the server for too long, cancel the
        statement, close the connection and raise OperationalError."""
        if self.response_timeout and not self.is_patient and named.get("timeout") is None:
            gen = self._given_up(gen, self.response_timeout)
        return super().wait(gen, *more, **named)

    def _given_up(self, gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
        heard_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                if is_ready := (yield wanted):
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > seconds:
                    break
                wanted = gen.send(is_ready)
        except StopIteration as end:
            result: T = end.value
            return result
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=CANCEL_SECONDS)
        self.close()
        raise psycopg.OperationalError(LATE)

    def add_notice_handler(self, callback: Callable[[Any], None]) -> None:
        """Receive the notices of the server; the connection is closed after its use."""
        self.is_spoiled = True
        super().add_notice_handler(callback)

    def add_notify_handler(self, callback: Callable[[Any], None]) -> None:
        """Receive notifications; the connection is closed after its use."""
        self.is_spoiled = True
        super().add_notify_handler(callback)

    def restore(self, threshold: int | None) -> None:
        """Restore the session, and the attributes that a new connection has."""
        self.is_patient = False
        self.row_factory, self.cursor_factory = tuple_row, psycopg.Cursor
        with self.execute(SQL["restore"], prepare=False) as cursor:
            while cursor.nextset():
                pass
            if cursor.rowcount:
                cursor.execute(SQL["deallocate"])
        self.prepare_threshold, self._map = threshold, None
        self.is_restored = True


class LoopConnection(asyncpg.Connection):
    """An asyncpg connection whose Python state can be restored."""

    is_restored = False
    is_spoiled = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._codecs: set[tuple[str, str]] = set()
        """Name and schema of the types with a codec of a handler."""

    def end_session(self) -> None:
        """End the session on the server, by the socket alone."""
        if not self.is_closed():
            with suppress(OSError):  # the server has ended it
                transport: asyncio.Transport = self._transport  # type: ignore[attr-defined]
                transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    async def set_type_codec(self, typename: str, *, schema: str = "public", **more: Any) -> None:
        """Set the codec until the connection is restored."""
        await super().set_type_codec(typename, schema=schema, **more)
        self._codecs.add((typename, schema))

    async def set_builtin_type_codec(
        self, typename: str, *, schema: str = "public", **more: Any
    ) -> None:
        """Set the codec until the connection is restored."""
        await super().set_builtin_type_codec(typename, schema=schema, **more)
        self._codecs.add((typename, schema))

    async def add_listener(self, channel: str, callback: Any) -> None:
        """Add the callback; the connection is closed after its use."""
        self.is_spoiled = True
        await super().add_listener(channel, callback)

    def add_log_listener(self, callback: Any) -> None:
        """Add the callback; the connection is closed after its use."""
        self.is_spoiled = True
        super().add_log_listener(callback)

    def add_query_logger(self, callback: Any) -> None:
        """Add the callback; the connection is closed after its use."""
        self.is_spoiled = True
        super().add_query_logger(callback)

    def add_termination_listener(self, callback: Any) -> None:
        """Add the callback; the connection is closed after its use."""
        self.is_spoiled = True
        super().add_termination_listener(callback)

    async def restore(self) -> None:
        """Restore the session, and the codecs that a new connection has."""
        if await self.execute(SQL["restore"]) != "SELECT 0":
            await self.execute(SQL["deallocate"])
        while self._codecs:
            typename, schema = self._codecs.pop()
            await self.reset_type_codec(typename, schema=schema)
        self.is_restored = True
