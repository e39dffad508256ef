"""A ZooKeeper server of our own: its jars from Maven, one node on a free port of the loopback."""

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
"""What differs from ZooKeeper's own defaults, beside folder and port."""


class ZooKeeperServer(JavaServer):
    """See `Server`. `url` names no folder of znodes."""

    name = "zookeeper"
    title = "ZooKeeper"
    jars = Jars("zookeeper", VERSION, "ZooKeeper")

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self._port}"

    def create_root(self) -> str:
        """A folder of znodes that nobody has used; answers its URL."""
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
        """It serves: asked `ruok` it says yes before that, and then may leave a client without an
        answer."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 2) as connection,
        ):
            connection.sendall(b"srvr")
            said = b"".join(iter(lambda: connection.recv(4096), b""))
            return b"Mode: standalone" in said
        return False
