"""The server of `fairlead web`: it bounds its connections, and closes those of clients that send or
read too slowly.

Source: the defences of HAProxy (`maxconn`, `timeout http-request`) and nginx
(`client_header_timeout`, `send_timeout`) against slow clients.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairlead.web.live import MOST_VIEWERS

REQUEST_SECONDS = 15.0
"""Seconds in which a client sends a whole request, its head and its body."""
WRITE_SECONDS = 30.0
"""Seconds in which a client takes what is buffered for it."""
MOST_CONNECTIONS = 2 * MOST_VIEWERS
"""Greatest number of open connections, if the process may open as many files."""
SPARE_FILES = 128
"""Files that connections leave to the store, the lake and the log."""


def most_connections() -> int:
    """Return how many connections this process may have open at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, files - SPARE_FILES))


def config_of(app: ASGIApp, root_path: str = "") -> uvicorn.Config:
    """Return the configuration of a server whose connections are bounded."""

    class Protocol(BoundedProtocol):
        most = most_connections()

    return uvicorn.Config(
        app,
        http=Protocol,
        access_log=False,  # a line has the query, and so the token
        log_level="warning",
        lifespan="off",
        server_header=False,
        ws="none",
        root_path=root_path,
        timeout_graceful_shutdown=5,
    )


class BoundedProtocol(H11Protocol):
    """One connection. It closes if the client does not send a request in REQUEST_SECONDS, or does
    not take what is buffered in WRITE_SECONDS. One connection above `most` closes the eldest one
    that waits for a request."""

    most = MOST_CONNECTIONS
    """Greatest number of connections of the server."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._request, self._write = _Deadline(self.loop), _Deadline(self.loop)
        self.opened_at = 0.0
        """Seconds of the loop's clock."""

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for a request, or for the rest of one."""
        return self._request.is_running or self.timeout_keep_alive_task is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection; close the eldest one that waits if there are too many."""
        super().connection_made(transport)
        self.opened_at = self.loop.time()
        self._request.begin(REQUEST_SECONDS, transport)
        if len(self.connections) > self.most:
            others = [each for each in self.connections if isinstance(each, BoundedProtocol)]
            min(
                (each for each in others if each.is_waiting), key=lambda each: each.opened_at
            ).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self._request.end()
        self._write.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._request.end()
        elif not self._request.is_running:
            self._request.begin(REQUEST_SECONDS, self.transport)

    def pause_writing(self) -> None:
        """Give the client some time to take what is buffered."""
        super().pause_writing()
        self._write.begin(WRITE_SECONDS, self.transport)

    def resume_writing(self) -> None:
        """Write on."""
        self._write.end()
        super().resume_writing()


class _Deadline:
    """Time after which a connection is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def begin(self, seconds: float, transport: asyncio.Transport) -> None:
        self._timer = self._loop.call_later(seconds, transport.abort)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
