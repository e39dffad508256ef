"""A ZooKeeper server for tests, with jars from Maven."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from services.jars import Jars
from services.java_server import JavaServer
from services.process import free_port

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
        settings |= self._more_settings()
        (self.folder / "zoo.cfg").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )

    def _more_settings(self) -> dict[str, object]:
        """Return settings to add or to replace."""
        return {}

    def _command(self) -> list[str]:
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [*self._java("-Xmx256m", program=main), str(self.folder / "zoo.cfg")]

    def _is_ready(self) -> bool:
        """Return whether the server serves clients, by its response to `srvr`.

        The response to `ruok` comes earlier, when a client may still get no response.
        """
        return b"Mode: standalone" in self.status()

    def status(self) -> bytes:
        """Return the response to `srvr`; empty if there is none."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 2) as connection,
        ):
            connection.sendall(b"srvr")
            return b"".join(iter(lambda: connection.recv(4096), b""))
        return b""


class ZooKeeperPeer(ZooKeeperServer):
    """A server of an ensemble of two. Alone it has no quorum, and serves readers only."""

    def __init__(self, number: int, ports: Sequence[tuple[int, int]]) -> None:
        """Start nothing yet. `number`: of this server, from 1. `ports`: two ports of each server,
        for its peers."""
        super().__init__()
        self._number = number
        self._ports = ports

    @classmethod
    def pair(cls) -> tuple[ZooKeeperPeer, ZooKeeperPeer]:
        """Return the two servers of a new ensemble."""
        ports = [(free_port(), free_port()) for _ in range(2)]
        return cls(1, ports), cls(2, ports)

    def _prepare(self) -> None:
        super()._prepare()
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / "myid").write_text(str(self._number))
        peers = [
            f"server.{n}=127.0.0.1:{peer}:{election}"
            for n, (peer, election) in enumerate(self._ports, 1)
        ]
        with (self.folder / "zoo.cfg").open("a") as settings:
            settings.write("\n".join(["initLimit=10", "syncLimit=5", *peers, ""]))

    def _command(self) -> list[str]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        options = ("-Xmx256m", "-Dreadonlymode.enabled=true")
        return [*self._java(*options, program=main), str(self.folder / "zoo.cfg")]

    def _is_ready(self) -> bool:
        return b"Mode: " in self.status()
