"""Cassandra servers for tests, with jars from Maven: a single node, or two datacentres."""

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
    # Batch confirms a write when it is on disk. Periodic confirms earlier, and loses the write even
    # after a kill -9 of the process.
    "commitlog_sync": "batch",
    "auto_snapshot": False,
    # Slabs would take 1 MB of the heap for each table with a row, and tests make thousands.
    "memtable_allocation_type": "unslabbed_heap_buffers",
    "auto_bootstrap": False,
    "hinted_handoff_enabled": False,
    "dynamic_snitch": False,
    "concurrent_reads": 8,
    "concurrent_writes": 8,
    "key_cache_size": "8MiB",
    "file_cache_size": "32MiB",
    "networking_cache_size": "16MiB",
}
"""Settings that differ from Cassandra's defaults, without folders and ports."""

_JVM_OPTIONS = [
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xshare:auto",
    "-Dfile.encoding=UTF-8",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    # A single node need not wait for gossip of others.
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
"""Java 17 internals that Cassandra uses: those of its conf/jvm17-server.options, without the
compiler, which a JRE does not have."""

_LOGBACK = """<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date{ISO8601} %-5level [%thread] %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDOUT"/></root>
</configuration>
"""

_OPTIONS_REQUEST = b"\x04\x00\x00\x00\x05\x00\x00\x00\x00"
"""Native protocol, version 4: OPTIONS on stream 0. Every server responds with SUPPORTED."""
_SUPPORTED = 0x06

_PATIENCE = 60.0
"""Seconds to wait for a connection to a server that runs but may be slow."""


@dataclass(frozen=True)
class NodeAddress:
    """Address and datacentre of a node in a cluster."""

    address: str
    storage_port: int
    datacentre: str = ""
    seeds: tuple[str, ...] = ()
    """Nodes to contact first, each as its `storage`; empty: the node itself."""
    heap: str = "1g"

    @property
    def storage(self) -> str:
        """Address and port for other nodes."""
        return f"{self.address}:{self.storage_port}"


class CassandraServer(JavaServer):
    """A Cassandra node. `url` names no keyspace."""

    name = "cassandra"
    title = "Cassandra"
    jars = Jars("cassandra", VERSION, "Cassandra")
    start_seconds = 300

    def __init__(self, node: NodeAddress | None = None) -> None:
        """Start nothing yet. Raise MissingProgram."""
        super().__init__()
        self._node = node or NodeAddress("127.0.0.1", free_port())
        self._session: Any = None

    @property
    def host(self) -> str:
        """Address and port for clients."""
        return f"{self._node.address}:{self._port}"

    @property
    def url(self) -> str:
        return self.url_of("")

    def url_of(self, keyspace: str) -> str:
        """Return the URL of a keyspace."""
        return f"cassandra://{self.host}/{keyspace}"

    def create_keyspace(self, is_durable: bool = True) -> str:
        """Create an empty keyspace with a new name and return its URL.

        If the keyspace is not durable, a write does not wait for the disk, and a crash loses it.
        """
        if self._session is None:
            self._session = self.connect()
        name = self.fresh_name()
        self._session.execute(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy',"
            f" 'replication_factor': 1}} AND durable_writes = {str(is_durable).lower()}",
            timeout=600.0,  # changes of the schema wait for each other
        )
        return self.url_of(name)

    def connect(self) -> Any:
        """Return a session of the driver; the caller shuts its cluster down. The driver keeps no
        copy of the schema, which it would read again after each change."""
        from cassandra.cluster import Cluster

        return Cluster(
            [self._node.address],
            self._port,
            protocol_version=5,
            connect_timeout=_PATIENCE,
            control_connection_timeout=_PATIENCE,
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
        ).connect()

    def _prepare(self) -> None:
        folder, node = self.folder, self._node
        seeds = {"seeds": ",".join(node.seeds or [node.storage])}
        settings = _SETTINGS | {
            "listen_address": node.address,
            "rpc_address": node.address,
            "native_transport_port": self._port,
            "storage_port": node.storage_port,
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
        if node.datacentre:
            settings |= {
                "endpoint_snitch": "GossipingPropertyFileSnitch",
                "hinted_handoff_enabled": True,
            }
            (folder / "rackdc").write_text(f"dc={node.datacentre}\nrack=one\n")
        settings |= self._more_settings()
        # JSON is also YAML.
        (folder / "cassandra.yaml").write_text(json.dumps(settings, indent=1))
        (folder / "logback.xml").write_text(_LOGBACK)
        (folder / "tmp").mkdir()

    def _more_settings(self) -> dict[str, Any]:
        """Return settings to add or to replace."""
        return {}

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
            f"-Xms{self._node.heap}",
            f"-Xmx{self._node.heap}",
            *_JVM_OPTIONS,
            *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTS),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
            *(f"-D{key}={value}" for key, value in properties.items()),
            program="org.apache.cassandra.service.CassandraDaemon",
        )

    def _is_ready(self) -> bool:
        """Return whether the server responds in its own protocol."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self._node.address, self._port), 2) as connection,
        ):
            connection.sendall(_OPTIONS_REQUEST)
            header = connection.recv(9)
            return len(header) >= 5 and header[4] == _SUPPORTED
        return False

    def disconnect(self) -> None:
        """Close the session that creates keyspaces."""
        if self._session is not None:
            self._session.cluster.shutdown()
            self._session = None

    def _end(self, mode: str) -> None:
        self.disconnect()
        super()._end(mode)


class TwoDatacentres:
    """A cluster of two nodes on two loopback addresses, each a datacentre: `dc1` and `dc2`."""

    name = CassandraServer.name

    def __init__(self) -> None:
        """Start nothing yet. Raise MissingProgram."""
        ports = free_port(), free_port()
        seeds = tuple(f"127.0.0.{n}:{port}" for n, port in enumerate(ports, 1))
        self.dc1, self.dc2 = (
            CassandraServer(NodeAddress(f"127.0.0.{n}", port, f"dc{n}", seeds, heap="384m"))
            for n, port in enumerate(ports, 1)
        )

    def url_of(self, keyspace: str) -> str:
        """Return the URL of a keyspace with one copy of each row in `dc1` (local) and in `dc2`."""
        hosts = f"{self.dc1.host},{self.dc2.host}"
        return f"cassandra://{hosts}/{keyspace}?replication=dc1:1,dc2:1&consistency=LOCAL_QUORUM&local_dc=dc1"

    def start(self) -> None:
        """Start both nodes; return when each has found the other. Raise the errors of a server."""
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
        """Stop both nodes and remove their folders."""
        self.dc2.stop(mode)
        self.dc1.stop(mode)


def _until(condition: Callable[[], bool], seconds: float = 60) -> None:
    tick = threading.Event()
    for _ in range(int(seconds * 10)):
        if condition():
            return
        tick.wait(0.1)
    raise RuntimeError("the two Cassandra nodes did not find each other")
