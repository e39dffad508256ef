"""One Cassandra, Kafka and ZooKeeper for all processes of a test run.

A host process starts each server when the first test asks for it. The run holds the host's standard
input open, so the host can stop the servers when the run ends, even by a kill.

PostgreSQL and Redis are not shared: each process of a run has its own, because they start within a
second and a test could see the effects of another test. On PostgreSQL, the oldest open transaction
delays all readers of history; Redis counts commands and publishes messages for all databases.
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

PATIENCE = 120.0
"""Seconds that the shared Cassandra and its clients wait: a slow machine must fail no test."""


class PatientCassandra(CassandraServer):
    """A Cassandra that refuses no request because the machine is slow."""

    def _more_settings(self) -> dict[str, Any]:
        kinds = ("read", "range", "write", "counter_write", "truncate")
        names = [*(f"{kind}_request_timeout" for kind in kinds), "cas_contention_timeout"]
        return dict.fromkeys([*names, "request_timeout"], f"{PATIENCE:.0f}s")


SHARED: dict[str, Callable[[], JavaServer]] = {
    server.name: server for server in (PatientCassandra, KafkaServer, ZooKeeperServer)
}

QUICK_JAVA = ("-XX:TieredStopAtLevel=1",)
"""Options of the Java servers of tests. The optimising compiler costs more than it saves within
minutes. Benchmarks use it."""

_UNFLUSHED_SCHEMA = "-Dcassandra.test.flush_local_schema_changes=false"
"""Option of a Cassandra that no test kills, because a crash would lose its schema. Without it, each
of hundreds of tables flushes the tables of the schema when it is created."""

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 2 << 30
"""Free bytes from which on the folders of tests and of the shared servers are in memory, where a flush
takes no time. Tests kill processes, never the machine, so no test can tell the difference."""

NO_FLUSH = {"fsync": "off"}
"""Settings of PostgreSQL in tests, for the same reason. Its files are too large for memory."""

_ADDRESS = "FAIRLEAD_TEST_SERVERS"
"""Environment variable with the socket of the host, for the workers of pytest-xdist."""
_SECRET = "FAIRLEAD_TEST_SERVERS_SECRET"


def running(name: str) -> Running:
    """Return port, process and folder of a shared server, which this call starts if necessary.

    Raise MissingProgram, or RuntimeError with the end of the server's log.
    """
    with Client(os.environ[_ADDRESS], "AF_UNIX", os.environ[_SECRET].encode()) as connection:
        connection.send(name)
        found = connection.recv()
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Running)
    return found


def _memory() -> Path | None:
    """Return the folder in memory if it has room, or None if it has not or $TMPDIR names a folder."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES else None


class Host:
    """The host process of one test run. The first process of the run starts it."""

    def __init__(self) -> None:
        """Start the host, and store its address in the environment."""
        self._folder = tempfile.TemporaryDirectory(prefix="fairlead-tests-", dir=_memory())
        os.environ[_ADDRESS] = str(Path(self._folder.name) / "socket")
        os.environ[_SECRET] = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers"],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"TMPDIR": self._folder.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the run, which then stops the host
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the host of the tests' servers did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def tests_folder(self) -> str:
        """Folder for the files of tests, which is removed with the host."""
        return str(Path(self._folder.name) / "tests")

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
    """Shared servers by name. Each server has its own thread, because a server ends with the thread that
    started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = {name: ThreadPoolExecutor(1) for name in SHARED}
        self._started: dict[str, Future[JavaServer]] = {}

    def get(self, name: str) -> JavaServer:
        """Return the server, which this call starts if necessary. Raise the error of its start."""
        with self._lock:
            if name not in self._started:
                self._started[name] = self._threads[name].submit(_start, SHARED[name])
        return self._started[name].result()

    def stop(self) -> None:
        """Stop all servers without a flush, because no test needs their data any more."""
        with self._lock:
            started = list(self._started.values())
        for future in started:
            with contextlib.suppress(Exception):
                future.result().stop("immediate")


def _start(new: Callable[[], JavaServer]) -> JavaServer:
    server = new()
    server.start()
    return server


def _respond(connection: Connection[Any, Any], servers: _Servers) -> None:
    with connection, contextlib.suppress(EOFError, OSError):
        try:
            found: object = servers.get(connection.recv()).running
        except Exception as failed:
            found = failed
        connection.send(found)


def _listen(listener: Listener, servers: _Servers) -> None:
    while True:
        with contextlib.suppress(Exception):  # a client closed its connection too early
            connection = listener.accept()
            threading.Thread(target=_respond, args=(connection, servers), daemon=True).start()


def main() -> None:
    """Serve until the standard input ends."""
    JavaServer.options = (*QUICK_JAVA, _UNFLUSHED_SCHEMA)
    servers = _Servers()
    address, secret = os.environ[_ADDRESS], os.environ[_SECRET].encode()
    with Listener(address, "AF_UNIX", backlog=16, authkey=secret) as listener:
        threading.Thread(target=_listen, args=(listener, servers), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.buffer.read()
        servers.stop()
        shutil.rmtree(Path(address).parent, ignore_errors=True)
        os._exit(0)  # the listener's thread still waits for a client


if __name__ == "__main__":
    main()
