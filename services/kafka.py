"""A Kafka broker for tests (KRaft, no ZooKeeper), with jars from Maven."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cached_property

from services.jars import Jars
from services.java_server import JavaServer
from services.process import free_port

VERSION = "3.9.1"

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    # The first consumer of a group need not wait for other consumers.
    "group.initial.rebalance.delay.ms": 0,
    # Short, so that a test need not wait long until the broker notices a killed consumer.
    "group.min.session.timeout.ms": 1000,
    # Short, so that a broker that restarts after a kill can soon use its number again.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
    "log.cleaner.dedupe.buffer.size": 2_000_000,
    "controlled.shutdown.enable": "false",
}
"""Settings that differ from Kafka's defaults, without folder and ports."""

_ALL_TOPICS = b"\x00\x00\x00\x14\x00\x03\x00\x00\x00\x00\x00\x01\x00\x06ready?\x00\x00\x00\x00"
"""A metadata request, version 0. A broker that serves clients is in the list of the response."""

_LOG4J = """log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p [%t] %c{1} - %m%n
"""


_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    # Short, so that a quota delays a test by seconds.
    "quota.window.num": 2,
}
"""Settings of a broker that refuses what its access control lists deny, and allows everything
else."""

_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="broker" password="broker" user_app="secret";'
)


class KafkaServer(JavaServer):
    """A Kafka broker."""

    name = "kafka"
    title = "Kafka"
    jars = Jars("kafka", VERSION, "Kafka")

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self._port}"

    def create_prefix(self) -> str:
        """Return a URL whose prefix of topics and consumer group is new."""
        return f"{self.url}/?prefix={self.fresh_name()}."

    def configure(self, *arguments: str) -> None:
        """Run kafka-configs.sh on this broker. Raise RuntimeError with its output."""
        self._run("kafka.admin.ConfigCommand", "--bootstrap-server", self._client, *arguments)

    @property
    def _client(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _prepare(self) -> None:
        self.controller_port = controller_port = free_port()
        settings = _SETTINGS | {
            "listeners": f"CLIENT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{self._port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "log.dirs": self.folder / "data",
        }
        settings |= self._more_settings(settings)
        (self.folder / "server.properties").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )
        (self.folder / "log4j.properties").write_text(_LOG4J)
        settings_file = str(self.folder / "server.properties")
        cluster = f"--cluster-id={self.cluster}"
        self._run("kafka.tools.StorageTool", "format", cluster, "-c", settings_file)

    @cached_property
    def cluster(self) -> str:
        """Id of the cluster."""
        # The zero byte makes the first letter an A, because a dash would look like an option.
        return urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")

    def _run(self, program: str, *arguments: str) -> None:
        ran = subprocess.run(
            [*self._kafka("64m", program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(
                f"{program} of Kafka failed:\n{ran.stdout.decode(errors='replace')[-3000:]}"
            )

    def _more_settings(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Return settings to add to these or to replace some of them."""
        return {}

    def _command(self) -> list[str]:
        return [*self._kafka("512m", "kafka.Kafka"), str(self.folder / "server.properties")]

    def _kafka(self, heap: str, program: str) -> list[str]:
        settings = f"-Dlog4j.configuration={(self.folder / 'log4j.properties').as_uri()}"
        return self._java(f"-Xmx{heap}", "-XX:+ExitOnOutOfMemoryError", settings, program=program)

    def _is_ready(self) -> bool:
        """Return whether the broker lists itself in its metadata."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 2) as connection,
        ):
            connection.sendall(_ALL_TOPICS)
            # Length, correlation id, number of brokers.
            response = connection.recv(12)
            return len(response) == 12 and int.from_bytes(response[8:], "big") > 0
        return False


class GuardedKafkaServer(KafkaServer):
    """A Kafka broker that obeys access control lists, and also listens on a port for the user `app`
    with the password `secret`."""

    def login_url(self, password: str) -> str:
        """Return a URL with a new prefix, the user `app` and this password."""
        return (
            f"kafka://app:{password}@127.0.0.1:{self._login_port}/?prefix={self.fresh_name()}."
            "&security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
        )

    def _more_settings(self, settings: Mapping[str, object]) -> dict[str, object]:
        self._login_port = free_port()
        login = f"LOGIN://127.0.0.1:{self._login_port}"
        protocols = "listener.security.protocol.map"
        return {
            **_AUTHORIZER,
            "listeners": f"{settings['listeners']},{login}",
            "advertised.listeners": f"{settings['advertised.listeners']},{login}",
            protocols: f"{settings[protocols]},LOGIN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": _LOGIN,
        }


class JoiningKafkaServer(KafkaServer):
    """The second broker of a cluster. The first broker is also the controller of both."""

    def __init__(self, first: KafkaServer) -> None:
        """Start nothing yet. `first`: the running first broker."""
        super().__init__()
        self._first = first

    @cached_property
    def cluster(self) -> str:
        return self._first.cluster

    def _more_settings(self, settings: Mapping[str, object]) -> dict[str, object]:
        return {
            "process.roles": "broker",
            "node.id": 2,
            "listeners": f"CLIENT://{self._client}",
            "controller.quorum.voters": f"1@127.0.0.1:{self._first.controller_port}",
        }
