"""A real Kafka that asks for TLS, a certificate of the client, a user and a password."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from fairlead import App  # noqa: E402
from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from services.kafka import KafkaServer  # noqa: E402
from services.process import free_port  # noqa: E402
from tests.certificates import ADDRESS_ONLY, make_certificates  # noqa: E402
from tests.conftest import own_server  # noqa: E402
from tests.integration.tls_kit import (  # noqa: E402
    LOGIN,
    PASSWORD,
    query_of,
    refusal_of,
    run_a_task,
    with_other_files,
    write_pem,
)
from tests.tiers import NIGHTLY  # noqa: E402

pytestmark = NIGHTLY("a slow start")

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' username="broker" password="broker" user_app="{PASSWORD}";'
)


class SecureKafka(KafkaServer):
    """A Kafka that also listens with TLS (SSL), and with TLS and a login (SASL_SSL)."""

    def _more_settings(self, settings: Mapping[str, object]) -> dict[str, object]:
        make_certificates(self.folder, ADDRESS_ONLY)
        write_pem(self.folder)
        self.ports = {"SSL": free_port(), "SASL_SSL": free_port()}
        more = "".join(f",{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        protocols = "listener.security.protocol.map"
        return {
            "listeners": f"{settings['listeners']}{more}",
            "advertised.listeners": f"{settings['advertised.listeners']}{more}",
            protocols: f"{settings[protocols]},SSL:SSL,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.folder / "server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.folder / "ca.pem",
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": _PLAIN,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": _SCRAM,
        }

    def secure_url(
        self, protocol: str, *, login: str = "", host: str = "127.0.0.1", **more: str
    ) -> str:
        """Return a URL with a new prefix and all that the server asks for, but for what `more`
        replaces (with _ for dots); an empty value leaves its parameter out."""
        given = {
            "prefix": f"{self.fresh_name()}.",
            "security_protocol": protocol,
            "ssl_ca_location": f"{self.folder}/ca.crt",
        }
        if protocol == "SSL":
            given["ssl_certificate_location"] = f"{self.folder}/client.crt"
            given["ssl_key_location"] = f"{self.folder}/client.key"
        query = query_of(
            *({k.replace("_", "."): v for k, v in each.items()} for each in (given, more))
        )
        return f"kafka://{login}{host}:{self.ports[protocol]}/?{query}"


@pytest.fixture(scope="module")
def server() -> Iterator[SecureKafka]:
    for server in own_server(SecureKafka):
        server.configure(
            *("--alter", "--entity-type", "users", "--entity-name", "app"),
            *("--add-config", f"SCRAM-SHA-512=[password={PASSWORD}]"),
        )
        yield server


@pytest.mark.parametrize(
    ("protocol", "login", "mechanism"),
    [("SSL", "", ""), ("SASL_SSL", LOGIN, "PLAIN"), ("SASL_SSL", LOGIN, "")],
    ids=["certificate", "PLAIN", "SCRAM"],
)
async def test_a_channel_works_with_tls_and_a_login(
    protocol: str, login: str, mechanism: str, server: SecureKafka, sqlite_url: str
) -> None:
    url = server.secure_url(protocol, login=login, sasl_mechanism=mechanism)
    app = App(sqlite_url, channel=url)
    await run_a_task(app)
    assert KafkaEndpoint.of(url).status([]).servers == "1 broker"
    await app.connections.close_async()


@pytest.mark.parametrize(
    ("protocol", "changes", "cause"),
    [
        ("SASL_SSL", {"login": "app:wrong@"}, "check user and password in the URL"),
        (
            "SASL_SSL",
            {"login": LOGIN, "host": "localhost"},
            "use a host that the certificate names",
        ),
        ("SASL_SSL", {"login": LOGIN, "ssl_ca_location": "{other}/ca.crt"}, "ssl.ca.location=FILE"),
        (
            "SSL",
            {
                "ssl_certificate_location": "{other}/client.crt",
                "ssl_key_location": "{other}/client.key",
            },
            "name one that it accepts, ssl.certificate.location=FILE",
        ),
    ],
)
async def test_a_refusal_ends_a_worker_with_one_line_that_names_cause_and_cure(
    protocol: str,
    changes: dict[str, str],
    cause: str,
    server: SecureKafka,
    sqlite_url: str,
    tmp_path: Path,
) -> None:
    App(sqlite_url).migrate()
    url = server.secure_url(protocol, **with_other_files(changes, tmp_path))
    app = App(sqlite_url, channel=url)
    line = await refusal_of(app)
    assert cause in line and "Kafka at" in line
    await app.connections.close_async()


@pytest.mark.parametrize(
    ("protocol", "at", "login", "cause"),
    [
        ("PLAINTEXT", "SSL", "", "asks for TLS on this port: write security.protocol=SASL_SSL"),
        ("SASL_PLAINTEXT", "SASL_SSL", LOGIN, "asks for TLS on this port"),
        ("SSL", "PLAINTEXT", "", "has no TLS on this port"),
        ("SASL_SSL", "PLAINTEXT", LOGIN, "has no TLS on this port"),
    ],
)
async def test_a_url_with_the_wrong_choice_of_tls_ends_a_worker(
    protocol: str, at: str, login: str, cause: str, server: SecureKafka, sqlite_url: str
) -> None:
    App(sqlite_url).migrate()
    port = server.ports.get(at, server.port)
    query = f"prefix={server.fresh_name()}.&security.protocol={protocol}"
    app = App(sqlite_url, channel=f"kafka://{login}127.0.0.1:{port}/?{query}")
    assert cause in await refusal_of(app)
    await app.connections.close_async()
