"""The states in which a real Redis refuses or delays commands, and a server that tests drive into
them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redis import Redis, exceptions

from services.process import free_port
from services.redis import RedisServer
from tests.waiting import wait_until

NO_MASTER = ("127.0.0.1", 1)
"""An address where no master is."""


class DrivenServer(RedisServer):
    """A Redis that also listens on a Unix socket, and lets tests drive it into every state."""

    settings = ""
    """Further lines of the configuration."""

    def _prepare(self) -> None:
        super()._prepare()
        with Path(self.folder / "redis.conf").open("a") as settings:
            settings.write(
                f"unixsocket {self.socket}\nenable-debug-command local\nmasterauth"
                f" {self._password}\nrepl-diskless-sync-delay 0\nlua-time-limit 5\n{self.settings}"
            )

    @property
    def socket(self) -> Path:
        return self.folder / "redis.sock"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def shares_password_of(self, other: DrivenServer) -> None:
        """Use the password of another server; call before the start."""
        self._password = other._password

    def url_at(self, socket: Path) -> str:
        """Return the URL for clients that connect through this path of a socket."""
        return f"unix://:{self._password}@{socket}"

    def operator(self) -> Any:
        """Return a client for the test itself, which works in every state of the server."""
        return Redis.from_url(self.url, retry=None, socket_timeout=None)


class ClusterServer(DrivenServer):
    """A node of a cluster."""

    settings = "cluster-enabled yes\ncluster-node-timeout 2000\n"

    def _prepare(self) -> None:
        super()._prepare()
        with Path(self.folder / "redis.conf").open("a") as settings:
            # The default, 10000 above the port, may be the port of an outgoing connection.
            settings.write(f"cluster-port {free_port()}\n")


@contextmanager
def too_few_replicas(server: DrivenServer, client: Any) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)


@contextmanager
def new_password(server: DrivenServer, client: Any) -> Iterator[None]:
    """Demand a password of clients that have none, until the end."""
    client.config_set("requirepass", server._password)
    client.client_kill_filter(skipme=True, _type="normal")
    yield
    client.config_set("requirepass", "")


@contextmanager
def failing_disk(server: DrivenServer, client: Any) -> Iterator[None]:
    """A folder in the place of the snapshot makes every snapshot fail, even for root."""
    client.config_set("save", "3600 1000000")
    in_the_way = server.folder / "dump.rdb"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield
    shutil.rmtree(in_the_way)
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")
    client.config_set("save", "")


@contextmanager
def busy_script(server: DrivenServer, client: Any) -> Iterator[None]:
    def run() -> None:
        with server.operator() as other:
            with suppress(exceptions.ResponseError):  # killed
                other.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()

    def is_busy() -> bool:
        try:
            client.ping()
        except exceptions.ResponseError:
            return True
        return False

    wait_until(is_busy)
    yield
    client.script_kill()
    thread.join()


@contextmanager
def demoted(server: DrivenServer, client: Any) -> Iterator[None]:
    client.replicaof(*NO_MASTER)
    yield
    client.replicaof("NO", "ONE")


@contextmanager
def without_master(server: DrivenServer, client: Any) -> Iterator[None]:
    client.config_set("replica-serve-stale-data", "no")
    client.replicaof(*NO_MASTER)
    yield
    client.replicaof("NO", "ONE")


@contextmanager
def full(server: DrivenServer, client: Any) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    yield
    client.config_set("maxmemory", 0)


@contextmanager
def loading(server: DrivenServer, client: Any) -> Iterator[None]:
    """Load a snapshot that takes as long as the test wants."""
    client.config_set("loading-process-events-interval-bytes", 1024)
    client.mset({f"ballast:{n}": "x" * 1000 for n in range(400)})
    client.config_set("key-load-delay", 50_000)

    def reload() -> None:
        with server.operator() as other:
            other.execute_command("DEBUG", "RELOAD")

    thread = threading.Thread(target=reload)
    thread.start()
    wait_until(lambda: client.info("persistence")["loading"] == 1)
    yield
    client.config_set("key-load-delay", 0)
    thread.join()


@contextmanager
def cluster_down(server: DrivenServer, client: Any) -> Iterator[None]:
    client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
    wait_until(lambda: client.cluster("INFO")["cluster_state"] == "fail")
    yield
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok")


@contextmanager
def no_permission(server: DrivenServer, client: Any) -> Iterator[None]:
    client.execute_command("ACL", "SETUSER", "default", "-xadd", "-xreadgroup", "-hset")
    yield
    client.execute_command("ACL", "SETUSER", "default", "+@all")


State = Callable[[DrivenServer, Any], Any]

PASSING: dict[str, State] = {
    "NOREPLICAS": too_few_replicas,
    "MISCONF": failing_disk,
    "BUSY": busy_script,
    "READONLY": demoted,
    "MASTERDOWN": without_master,
    "OOM": full,
    "LOADING": loading,
    "CLUSTERDOWN": cluster_down,
}
"""States that end without a change of Fairlead's settings, by the code of their error."""


def class_for(code: str) -> type[DrivenServer]:
    """Return the class of the server that can be in this state."""
    return ClusterServer if code == "CLUSTERDOWN" else DrivenServer


@contextmanager
def driven_server(code: str = "") -> Iterator[tuple[DrivenServer, Any]]:
    """Yield a server that can be in this state, and the test's own client of it."""
    with class_for(code)() as server, server.operator() as client:
        if isinstance(server, ClusterServer):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        yield server, client
