"""A ZooKeeper server for tests, with jars from Maven."""

from __future__ import annotations

import contextlib
import socket

from services.jars import Jars
from services.java_server import JavaServer

VERSION = "3.9.4"

_SETTINGS = {
    "tickTime": 500,
    "minSessionTimeout": 1000,
    "maxSessionTimeout": 60_000,
    "maxClientCnxns": 0,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "ruok,srvr,cons",
}
"""Settings that differ from ZooKeeper's defaults, without folder and port."""


class ZooKeeperServer(JavaServer):
    """A ZooKeeper server. `url` names no folder of znodes."""

    name = "zookeeper"
    title = "ZooKeeper"
    jars = Jars("zookeeper", VERSION, "ZooKeeper")

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self._port}"

    def create_root(self) -> str:
        """Return the URL of a new folder of znodes."""
        return f"{self.url}/{self.fresh_name()}"

    def _prepare(self) -> None:
        settings = _SETTINGS | {
            "dataDir": self.folder / "data",
            "clientPort": self._port,
            "clientPortAddress": "127.0.0.1",
        }
        (self.folder / "zoo.cfg").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )

    def _command(self) -> list[str]:
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [*self._java("-Xmx256m", program=main), str(self.folder / "zoo.cfg")]

    def _is_ready(self) -> bool:
        """Return whether the server serves clients, by its response to `srvr`.

        The response to `ruok` comes earlier, when a client may still get no response.
        """
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 2) as connection,
        ):
            connection.sendall(b"srvr")
            response = b"".join(iter(lambda: connection.recv(4096), b""))
            return b"Mode: standalone" in response
        return False
