"""A TCP proxy in front of a server, with the faults of a network."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """A TCP proxy that can break its connections, leave them open and silent as a dead network does,
    or accept the next one without a response, as a server that is starting may do."""

    def __init__(self, url: str, port: int = 0) -> None:
        self._parts = urlsplit(url)
        self.accepted = 0
        self.swallows_next = False
        self.has_swallowed = threading.Event()
        self._silent = 0
        """Number of the last connection that is silent."""
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        login, at, _ = self._parts.netloc.rpartition("@")
        self.url: str = urlunsplit(self._parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Transfer nothing more on the connections of now; later ones work."""
        self._silent = self.accepted

    def drop_connections(self) -> None:
        """Break every connection that passes through the proxy now."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections and accept no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.drop_connections()
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self.accepted += 1
                if self.swallows_next:
                    self.swallows_next = False
                    self.has_swallowed.set()
                    continue
                server = socket.create_connection((self._parts.hostname, self._parts.port))
                self._sockets.append(server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._copy, args=(*ends, self.accepted), daemon=True
                    ).start()

    def _copy(self, source: socket.socket, target: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if number > self._silent:
                    target.sendall(data)
            if number > self._silent:
                target.shutdown(socket.SHUT_RDWR)
