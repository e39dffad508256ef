"""A small HTTP server for probes and metrics, in a thread of its own: one GET request for each
connection."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import threading
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
"""Return the response for a path and the Accept header; None for an unknown path. The server calls
it in its thread."""


class StatusServer:
    """Listens on an address, and responds from the routes in a thread of its own."""

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
        self._routes = routes
        self._token = token
        self._probes = probes

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Serve until the process ends."""
        threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="fairlead-status", daemon=True
        ).start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._serve_one, sock=self._listener, limit=_LONGEST_REQUEST
        )
        await server.serve_forever()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_encoded(self._respond(request)))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            writer.transport.abort()  # the client has closed, is too slow or sends too much

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


def _encoded(response: Response) -> bytes:
    challenge = "WWW-Authenticate: Bearer\r\n" if response.status == HTTPStatus.UNAUTHORIZED else ""
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        f"{challenge}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + response.body
