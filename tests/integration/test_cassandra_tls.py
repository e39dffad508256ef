"""A real Cassandra that asks for TLS, a certificate of the client, a user and a password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import NIGHTLY

pytest.importorskip("cassandra", reason="needs the extra cassandra")
from cassandra.auth import PlainTextAuthProvider  # noqa: E402
from cassandra.cluster import Cluster, NoHostAvailable  # noqa: E402

from fairlead import App  # noqa: E402
from fairlead.errors import ConfigurationError  # noqa: E402
from fairlead.tls import Tls  # noqa: E402
from services.cassandra import CassandraServer  # noqa: E402
from tests.certificates import ADDRESS_ONLY, make_certificates, make_stores  # noqa: E402
from tests.conftest import own_server  # noqa: E402
from tests.integration.tls_kit import (  # noqa: E402
    LOGIN,
    PASSWORD,
    files_of_client,
    query_of,
    refusal_of,
    run_a_task,
    with_other_files,
)

pytestmark = NIGHTLY("a slow start")


class SecureCassandra(CassandraServer):
    """A Cassandra that is closed to whoever has no certificate, user and password."""

    def _more_settings(self) -> dict[str, Any]:
        make_certificates(self.folder, ADDRESS_ONLY)
        make_stores(self.folder, "stores")
        return {
            "authenticator": "PasswordAuthenticator",
            "client_encryption_options": {
                "enabled": True,
                "optional": False,
                "require_client_auth": True,
                "keystore": str(self.folder / "keystore.p12"),
                "keystore_password": "stores",
                "truststore": str(self.folder / "truststore.p12"),
                "truststore_password": "stores",
                "store_type": "PKCS12",
            },
        }

    def connect(self) -> Any:
        tls = Tls.of("", files_of_client(self.folder))
        assert tls is not None
        return Cluster(
            ["127.0.0.1"],
            self.port,
            protocol_version=5,
            ssl_context=tls.make_context(),
            auth_provider=PlainTextAuthProvider("cassandra", "cassandra"),
        ).connect()

    def _is_ready(self) -> bool:
        """Return whether the first user, whom the server creates after its start, may log in."""
        try:
            session = self.connect()
        except NoHostAvailable:
            return False
        session.cluster.shutdown()
        return True

    def secure_url(
        self, keyspace: str, *, login: str = LOGIN, host: str = "127.0.0.1", **files: str
    ) -> str:
        """Return a URL with all that the server asks for, but for what `files` replaces; an empty
        file leaves its parameter out."""
        query = query_of(files_of_client(self.folder), files)
        return f"cassandra://{login}{host}:{self.port}/{keyspace}?{query}"


@pytest.fixture(scope="module")
def server() -> Iterator[SecureCassandra]:
    for server in own_server(SecureCassandra):
        session = server.connect()
        session.execute(f"CREATE ROLE app WITH PASSWORD = '{PASSWORD}' AND LOGIN = true")
        session.cluster.shutdown()
        yield server


@pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
async def test_a_backlog_works_with_tls_a_user_and_a_password(
    mode: str, server: SecureCassandra, sqlite_url: str
) -> None:
    host = "localhost" if mode == "verify-ca" else "127.0.0.1"
    url = server.secure_url(f"works_{mode.replace('-', '_')}", host=host, sslmode=mode)
    app = App(sqlite_url, backlog=url)
    await run_a_task(app)
    app.close()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"login": "app:wrong@"}, "check user and password in its URL"),
        ({"login": ""}, "check user and password in its URL"),
        ({"host": "localhost"}, "another name than the URL: use a host that it names"),
        ({"sslrootcert": "{other}/ca.crt"}, "name the file of the authority, sslrootcert=FILE"),
        ({"sslrootcert": "system"}, "name the file of the authority, sslrootcert=FILE"),
        (
            {"sslcert": "{other}/client.crt", "sslkey": "{other}/client.key"},
            "name one that it accepts, sslcert=FILE and sslkey=FILE",
        ),
        ({"sslcert": "", "sslkey": ""}, "name one that it accepts, sslcert=FILE"),
    ],
)
async def test_a_refusal_ends_a_worker_with_one_line_that_names_cause_and_cure(
    changes: dict[str, str], cause: str, server: SecureCassandra, sqlite_url: str, tmp_path: Path
) -> None:
    App(sqlite_url).migrate()
    url = server.secure_url("refused", **with_other_files(changes, tmp_path))
    app = App(sqlite_url, backlog=url)
    line = await refusal_of(app)
    assert cause in line and "Cassandra at" in line
    app.close()


async def test_a_url_without_tls_ends_a_worker_of_a_server_that_asks_for_it(
    server: SecureCassandra, sqlite_url: str
) -> None:
    App(sqlite_url).migrate()
    url = server.secure_url("refused", sslrootcert="", sslcert="", sslkey="")
    app = App(sqlite_url, backlog=url)
    assert "asks for TLS on this port: write sslmode=verify-full" in await refusal_of(app)
    with pytest.raises(ConfigurationError, match="asks for TLS on this port"):
        app.migrate()
    app.close()


async def test_a_url_with_tls_ends_a_worker_of_a_server_without_it(
    server: SecureCassandra, cassandra_server: CassandraServer, sqlite_url: str
) -> None:
    App(sqlite_url).migrate()
    port = str(cassandra_server.port)
    url = server.secure_url("refused").replace(str(server.port), port)
    app = App(sqlite_url, backlog=url)
    assert "has no TLS on this port" in await refusal_of(app)
    app.close()
