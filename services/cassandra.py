"""Cassandra servers of our own: their jars from Maven, a lone node or two datacentres on free ports
of the loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.jars import Jars
from services.java_server import JavaServer
from services.process import free_port

VERSION = "5.0.5"

_SETTINGS = {
    "cluster_name": "fairlead",
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "num_tokens": 1,
    # Batch: a write is answered once it is on disk. Periodic answers before, and loses it even to
    # kill -9 of the process.
    "commitlog_sync": "batch",
    "auto_snapshot": False,
    "auto_bootstrap": False,
    "hinted_handoff_enabled": False,
    "dynamic_snitch": False,
    "concurrent_reads": 8,
    "concurrent_writes": 8,
    "key_cache_size": "8MiB",
    "file_cache_size": "32MiB",
    "networking_cache_size": "16MiB",
}
"""What differs from Cassandra's own defaults, beside folders and ports."""

_JVM_OPTIONS = [
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xshare:auto",
    "-Dfile.encoding=UTF-8",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    # A lone node need not wait until it has heard of others.
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.ring_delay_ms=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
]

_EXPORTS = [
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "jdk.attach/sun.tools.attach",
]
_OPENS = [
    "java.base/java.lang.module",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "jdk.management/com.sun.management.internal",
    "java.base/sun.nio.ch",
    "java.base/java.io",
    "java.base/java.lang.reflect",
    "java.base/java.lang",
    "java.base/java.util",
]
"""What Cassandra needs of Java 17's inside, as in its own conf/jvm17-server.options, less the
compiler (not in a JRE)."""

_LOGBACK = """<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date{ISO8601} %-5level [%thread] %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDOUT"/></root>
</configuration>
"""

_OPTIONS_REQUEST = b"\x04\x00\x00\x00\x05\x00\x00\x00\x00"
"""Native protocol, version 4: OPTIONS on stream 0, which every server answers with SUPPORTED."""
_SUPPORTED = 0x06


@dataclass(frozen=True)
class Place:
    """Of a node in a cluster."""

    address: str
    storage_port: int
    datacentre: str = ""
    seeds: tuple[str, ...] = ()
    """Nodes to begin with, as `storage` says it; none: itself."""
    heap: str = "1g"

    @property
    def storage(self) -> str:
        """Where other nodes reach it."""
        return f"{self.address}:{self.storage_port}"


class CassandraServer(JavaServer):
    """See `Server`. `url` names no keyspace."""

    name = "cassandra"
    title = "Cassandra"
    jars = Jars("cassandra", VERSION, "Cassandra")
    start_seconds = 300

    def __init__(self, place: Place | None = None) -> None:
        """Starts nothing. Raises MissingProgram."""
        super().__init__()
        self._place = place or Place("127.0.0.1", free_port())
        self._session: Any = None

    @property
    def host(self) -> str:
        """Its address and port."""
        return f"{self._place.address}:{self._port}"

    @property
    def url(self) -> str:
        return self.url_of("")

    def url_of(self, keyspace: str) -> str:
        """The URL of one keyspace of this server."""
        return f"cassandra://{self.host}/{keyspace}"

    def create_keyspace(self) -> str:
        """A fresh, empty keyspace; answers its URL."""
        if self._session is None:
            self._session = self.connect()
        name = self.fresh_name()
        self._session.execute(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy',"
            " 'replication_factor': 1}"
        )
        return self.url_of(name)

    def connect(self) -> Any:
        """A session of the driver's; whoever asked shuts its cluster down."""
        from cassandra.cluster import Cluster

        return Cluster([self._place.address], self._port, protocol_version=5).connect()

    def _prepare(self) -> None:
        folder, place = self.folder, self._place
        seeds = {"seeds": ",".join(place.seeds or [place.storage])}
        settings = _SETTINGS | {
            "listen_address": place.address,
            "rpc_address": place.address,
            "native_transport_port": self._port,
            "storage_port": place.storage_port,
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [seeds],
                }
            ],
            "data_file_directories": [str(folder / "data")],
            "commitlog_directory": str(folder / "commitlog"),
            "saved_caches_directory": str(folder / "saved_caches"),
            "hints_directory": str(folder / "hints"),
            "cdc_raw_directory": str(folder / "cdc_raw"),
        }
        if place.datacentre:
            settings |= {
                "endpoint_snitch": "GossipingPropertyFileSnitch",
                "hinted_handoff_enabled": True,
            }
            (folder / "rackdc").write_text(f"dc={place.datacentre}\nrack=one\n")
        # JSON is YAML too.
        (folder / "cassandra.yaml").write_text(json.dumps(settings, indent=1))
        (folder / "logback.xml").write_text(_LOGBACK)
        (folder / "tmp").mkdir()

    def _command(self) -> list[str]:
        folder = self.folder
        properties = {
            "cassandra.config": (folder / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": folder,
            "logback.configurationFile": folder / "logback.xml",
            "java.io.tmpdir": folder / "tmp",
            "jna.tmpdir": folder / "tmp",
            "cassandra-rackdc.properties": (folder / "rackdc").as_uri(),
        }
        return self._java(
            f"-Xms{self._place.heap}",
            f"-Xmx{self._place.heap}",
            *_JVM_OPTIONS,
            *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTS),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
            *(f"-D{key}={value}" for key, value in properties.items()),
            program="org.apache.cassandra.service.CassandraDaemon",
        )

    def _is_ready(self) -> bool:
        """It answers in its own protocol."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self._place.address, self._port), 2) as connection,
        ):
            connection.sendall(_OPTIONS_REQUEST)
            header = connection.recv(9)
            return len(header) >= 5 and header[4] == _SUPPORTED
        return False

    def disconnect(self) -> None:
        """Close the session in which keyspaces are made."""
        if self._session is not None:
            self._session.cluster.shutdown()
            self._session = None

    def _end(self, mode: str) -> None:
        self.disconnect()
        super()._end(mode)


class TwoDatacentres:
    """A cluster of two nodes on two addresses of the loopback, each a datacentre of its own: `dc1`
    and `dc2`."""

    name = CassandraServer.name

    def __init__(self) -> None:
        """Starts nothing. Raises MissingProgram."""
        ports = free_port(), free_port()
        seeds = tuple(f"127.0.0.{n}:{port}" for n, port in enumerate(ports, 1))
        self.dc1, self.dc2 = (
            CassandraServer(Place(f"127.0.0.{n}", port, f"dc{n}", seeds, heap="384m"))
            for n, port in enumerate(ports, 1)
        )

    def url_of(self, keyspace: str) -> str:
        """Of a keyspace with a copy of each row in both; `dc1` is the near one."""
        hosts = f"{self.dc1.host},{self.dc2.host}"
        return f"cassandra://{hosts}/{keyspace}?replication=dc1:1,dc2:1&consistency=LOCAL_QUORUM&local_dc=dc1"

    def start(self) -> None:
        """Return when each knows of the other. Raises as a server does."""
        try:
            self.dc1.start()
            self.dc2.start()
            for server in (self.dc1, self.dc2):
                session = server.connect()
                _until(
                    lambda session=session: bool(
                        session.execute("SELECT peer FROM system.peers_v2").all()
                    )
                )
                session.cluster.shutdown()
        except BaseException:
            self.stop("immediate")
            raise

    def stop(self, mode: str = "fast") -> None:
        """End both; their folders are removed."""
        self.dc2.stop(mode)
        self.dc1.stop(mode)


def _until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    tick = threading.Event()
    for _ in range(int(seconds * 10)):
        if is_so():
            return
        tick.wait(0.1)
    raise RuntimeError("the two Cassandra nodes did not find each other")
