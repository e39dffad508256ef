"""A Cassandra server of our own: its jars from Maven, one node on free ports of the loopback."""

from __future__ import annotations

import contextlib
import json
import socket
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
    "listen_address": "127.0.0.1",
    "rpc_address": "127.0.0.1",
    # Batch: a write is answered once it is on disk. Periodic answers before, and loses it even to kill -9 of the process.
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
    "-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m", "-XX:+ExitOnOutOfMemoryError",
    "-Xshare:auto", "-Dfile.encoding=UTF-8", "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    # A lone node need not wait until it has heard of others.
    "-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
]  # fmt: skip

_EXPORTS = [
    "java.base/jdk.internal.misc", "java.base/java.lang.ref", "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql", "jdk.unsupported/sun.misc",
    "jdk.attach/sun.tools.attach",
]  # fmt: skip
_OPENS = [
    "java.base/java.lang.module", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar", "jdk.management/com.sun.management.internal", "java.base/sun.nio.ch",
    "java.base/java.io", "java.base/java.lang.reflect", "java.base/java.lang", "java.base/java.util",
]  # fmt: skip
"""What Cassandra needs of Java 17's inside, as in its own conf/jvm17-server.options, less the compiler (not in a JRE)."""

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


class CassandraServer(JavaServer):
    """See `Server`. `url` names no keyspace."""

    name = "cassandra"
    title = "Cassandra"
    jars = Jars("cassandra", VERSION, "Cassandra")

    def __init__(self) -> None:
        """Starts nothing. Raises MissingProgram."""
        super().__init__()
        self._keyspaces = 0
        self._session: Any = None

    @property
    def url(self) -> str:
        return self.url_of("")

    def url_of(self, keyspace: str) -> str:
        """The URL of one keyspace of this server."""
        return f"cassandra://127.0.0.1:{self._port}/{keyspace}"

    def create_keyspace(self) -> str:
        """A fresh, empty keyspace; answers its URL."""
        from cassandra.cluster import Cluster

        if self._session is None:
            self._session = Cluster(["127.0.0.1"], self._port, protocol_version=5).connect()
        self._keyspaces += 1
        name = f"test_{self._keyspaces}"
        self._session.execute(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        return self.url_of(name)

    def _prepare(self) -> None:
        folder, storage_port = self.folder, free_port()
        seeds = {"seeds": f"127.0.0.1:{storage_port}"}
        settings = _SETTINGS | {
            "native_transport_port": self._port,
            "storage_port": storage_port,
            "seed_provider": [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [seeds]}],
            "data_file_directories": [str(folder / "data")],
            "commitlog_directory": str(folder / "commitlog"),
            "saved_caches_directory": str(folder / "saved_caches"),
            "hints_directory": str(folder / "hints"),
            "cdc_raw_directory": str(folder / "cdc_raw"),
        }
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
        }
        return self._java(
            *_JVM_OPTIONS,
            *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTS),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
            *(f"-D{key}={value}" for key, value in properties.items()),
            program="org.apache.cassandra.service.CassandraDaemon",
        )

    def _is_ready(self) -> bool:
        """It answers in its own protocol."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 2) as connection:
            connection.sendall(_OPTIONS_REQUEST)
            header = connection.recv(9)
            return len(header) >= 5 and header[4] == _SUPPORTED
        return False

    def _end(self, mode: str) -> None:
        if self._session is not None:
            self._session.cluster.shutdown()
            self._session = None
        super()._end(mode)
