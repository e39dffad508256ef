"""One Cassandra, Kafka and ZooKeeper for all processes of a test run.

A host process starts each of them when the first test asks for it, and stops them when the run has
ended, however it ended: the run holds the host's standard input, and the host waits for its end.
PostgreSQL and Redis are not here. Each process of a run has its own: they start within a second, and
one test could see another's open transactions (PostgreSQL's oldest one holds up all readers of
history) or commands (Redis counts them and publishes for all databases).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from services.cassandra import CassandraServer
from services.java_server import JavaServer
from services.kafka import KafkaServer
from services.server import Running
from services.zookeeper import ZooKeeperServer

SHARED: dict[str, Callable[[], JavaServer]] = {
    server.name: server for server in (CassandraServer, KafkaServer, ZooKeeperServer)
}

_ADDRESS = "FAIRLEAD_TEST_SERVERS"
"""Environment variable with the socket of the host, for the workers of pytest-xdist."""
_SECRET = "FAIRLEAD_TEST_SERVERS_SECRET"


def running(name: str) -> Running:
    """Return where the shared server runs; start it first if nobody has asked for it.

    Raises MissingProgram, or RuntimeError with the end of the server's log.
    """
    with Client(os.environ[_ADDRESS], "AF_UNIX", os.environ[_SECRET].encode()) as connection:
        connection.send(name)
        found = connection.recv()
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Running)
    return found


class Host:
    """The host process of one test run, opened by the process that the run began with."""

    def __init__(self) -> None:
        """Start the process and leave its address in the environment."""
        self._folder = tempfile.TemporaryDirectory(prefix="fairlead-tests-")
        os.environ[_ADDRESS] = str(Path(self._folder.name) / "socket")
        os.environ[_SECRET] = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C is for the run, which then closes us
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the host of the tests' servers did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Stop the servers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        for name in (_ADDRESS, _SECRET):
            os.environ.pop(name, None)
        self._folder.cleanup()


class _Servers:
    """Shared servers by name; each has a thread for life, as a server ends with its starter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = {name: ThreadPoolExecutor(1) for name in SHARED}
        self._started: dict[str, Future[JavaServer]] = {}

    def get(self, name: str) -> JavaServer:
        """Return the started server. Raises as its start did."""
        with self._lock:
            if name not in self._started:
                self._started[name] = self._threads[name].submit(_start, SHARED[name])
        return self._started[name].result()

    def stop(self) -> None:
        """Stop them all; nobody wants their data any more."""
        with self._lock:
            started = list(self._started.values())
        for future in started:
            with contextlib.suppress(Exception):
                future.result().stop("immediate")


def _start(new: Callable[[], JavaServer]) -> JavaServer:
    server = new()
    server.start()
    return server


def _answer(connection: Connection[Any, Any], servers: _Servers) -> None:
    with connection, contextlib.suppress(EOFError, OSError):
        try:
            found: object = servers.get(connection.recv()).running
        except Exception as failed:
            found = failed
        connection.send(found)


def _listen(listener: Listener, servers: _Servers) -> None:
    while True:
        with contextlib.suppress(Exception):  # a client that went away in the middle
            connection = listener.accept()
            threading.Thread(target=_answer, args=(connection, servers), daemon=True).start()


def main() -> None:
    """Serve until the standard input ends."""
    servers = _Servers()
    address, secret = os.environ[_ADDRESS], os.environ[_SECRET].encode()
    with Listener(address, "AF_UNIX", backlog=16, authkey=secret) as listener:
        threading.Thread(target=_listen, args=(listener, servers), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.buffer.read()
        servers.stop()
        shutil.rmtree(Path(address).parent, ignore_errors=True)
        os._exit(0)  # the listener's thread waits for a client that will not come


if __name__ == "__main__":
    main()
