"""A small HTTP server for probes and metrics, driven by a selector, so that a supervisor serves it
from its own loop. Each connection carries one GET request.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus

from fairlead.errors import ConfigurationError

log = logging.getLogger("fairlead.supervisor")

_LONGEST_REQUEST = 16_384
_PATIENCE = 5.0  # seconds for a client to send its request and read the response


@dataclass(frozen=True)
class Response:
    """The response to one request."""

    status: int
    body: bytes
    content_type: str = "application/json"


Routes = Callable[[str, str], Response | None]
"""Return the response for a path and the Accept header; None for an unknown path."""


@dataclass
class _Connection:
    socket: socket.socket
    expires_at: float
    received: bytes = b""
    unsent: bytes = b""


class StatusServer:
    """Listens on an address and responds from the routes. Register its sockets with `selector`."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Routes,
        token: str | None = None,
        probes: Collection[str] = (),
    ) -> None:
        """`token`: bearer token (RFC 6750) that clients must send; None: nothing is asked for.
        `probes`: paths whose status every client gets, with an empty body. Raise
        ConfigurationError when the address cannot be used."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=64)
        except (OSError, OverflowError, UnicodeError) as error:
            cause = str(getattr(error, "strerror", None) or error).partition(" (while ")[0]
            raise ConfigurationError(
                f"metrics cannot be served on {host}:{port}: {cause}; give another --metrics-port"
                " or --metrics-host, or end the program that listens there"
            ) from error
        self._listener.setblocking(False)
        self._routes = routes
        self._token = token
        self._probes = probes
        self._selector: selectors.BaseSelector | None = None
        self._connections: dict[int, _Connection] = {}

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._listener.getsockname()[1])

    def register(self, selector: selectors.BaseSelector) -> None:
        """Let `selector` watch the server; the data of its keys is a callable to call."""
        self._selector = selector
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Close all sockets."""
        for connection in [*self._connections.values()]:
            self._drop(connection)
        if self._selector is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._listener)
        self._listener.close()

    def drop_expired(self) -> None:
        """Close connections whose clients are too slow."""
        now = time.monotonic()
        for connection in [*self._connections.values()]:
            if connection.expires_at <= now:
                self._drop(connection)

    def _accept(self) -> None:
        assert self._selector is not None
        self.drop_expired()
        try:
            accepted, _ = self._listener.accept()
        except OSError:  # the client has closed, or descriptors ran out
            return
        accepted.setblocking(False)
        connection = _Connection(accepted, time.monotonic() + _PATIENCE)
        self._connections[accepted.fileno()] = connection
        self._selector.register(accepted, selectors.EVENT_READ, lambda: self._receive(connection))

    def _receive(self, connection: _Connection) -> None:
        assert self._selector is not None
        if connection.socket.fileno() < 0:
            return  # dropped in this round
        try:
            data = connection.socket.recv(_LONGEST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.received += data
        if not data or len(connection.received) > _LONGEST_REQUEST:
            self._drop(connection)
        elif b"\r\n\r\n" in connection.received:
            connection.unsent = _encoded(self._respond(connection.received))
            self._selector.modify(
                connection.socket, selectors.EVENT_WRITE, lambda: self._send(connection)
            )

    def _respond(self, request: bytes) -> Response:
        first, *headers = request.split(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        if method != "GET":
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"")
        path = rest.partition(" ")[0].partition("?")[0]
        named = [header.partition(":") for header in headers]
        sent = {name.lower(): value.strip() for name, _, value in reversed(named)}
        accept = sent.get("accept", "")
        is_known = self._is_known(sent.get("authorization", ""))
        if not is_known and path not in self._probes:
            return _REFUSED
        try:
            response = self._routes(path, accept) or _UNKNOWN
            return response if is_known else Response(response.status, b"")
        except Exception:  # a request must end neither the server nor the supervisor around it
            log.exception("a request cannot be answered", extra={"path": path, "accept": accept})
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"")

    def _is_known(self, authorization: str) -> bool:
        """Return whether a client may read everything."""
        if self._token is None:
            return True
        scheme, _, token = authorization.partition(" ")
        is_same = hmac.compare_digest(token.strip().encode(), self._token.encode())
        return is_same and scheme.lower() == "bearer"

    def _send(self, connection: _Connection) -> None:
        if connection.socket.fileno() < 0:
            return  # dropped in this round
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        connection.unsent = connection.unsent[sent:]
        if not connection.unsent:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        assert self._selector is not None
        self._connections.pop(connection.socket.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


_UNKNOWN = Response(HTTPStatus.NOT_FOUND, b"unknown: use /metrics, /live or /ready\n", "text/plain")
_REFUSED = Response(
    HTTPStatus.UNAUTHORIZED,
    b"send the token: 'Authorization: Bearer <FAIRLEAD_METRICS_TOKEN>'\n",
    "text/plain",
)


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve_in_thread(server: StatusServer) -> None:
    """Serve in a new thread until the process ends."""
    selector = selectors.DefaultSelector()
    server.register(selector)

    def serve() -> None:
        while True:
            for key, _ in selector.select():
                key.data()

    threading.Thread(target=serve, name="fairlead-status", daemon=True).start()


def _encoded(response: Response) -> bytes:
    challenge = "WWW-Authenticate: Bearer\r\n" if response.status == HTTPStatus.UNAUTHORIZED else ""
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        f"{challenge}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + response.body
