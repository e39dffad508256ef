"""A real ZooKeeper with a port for TLS, which asks for a certificate, and folders with a login."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kazoo", reason="needs the extra zookeeper")
from kazoo.security import make_digest_acl  # noqa: E402

from fairlead import App  # noqa: E402
from fairlead.backends.zookeeper.session import Session, ZooKeeperEndpoint  # noqa: E402
from fairlead.errors import ConfigurationError  # noqa: E402
from services.process import free_port  # noqa: E402
from services.zookeeper import ZooKeeperServer  # noqa: E402
from tests.certificates import ADDRESS_ONLY, make_certificates  # noqa: E402
from tests.conftest import own_server  # noqa: E402
from tests.integration.tls_kit import (  # noqa: E402
    LOGIN,
    PASSWORD,
    files_of_client,
    query_of,
    refusal_of,
    with_other_files,
    write_pem,
)
from tests.tiers import NIGHTLY  # noqa: E402

LONG = NIGHTLY("a long run: kazoo tries to connect for five seconds")


class ZooKeeperTlsServer(ZooKeeperServer):
    """A ZooKeeper that also listens for clients with TLS and a certificate of its authority."""

    def _more_settings(self) -> dict[str, object]:
        make_certificates(self.folder, ADDRESS_ONLY)
        write_pem(self.folder)
        self.secure_port = free_port()
        return {
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": self.folder / "server.pem",
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": self.folder / "ca.pem",
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        }

    def secure_url(
        self, folder: str, *, login: str = LOGIN, host: str = "127.0.0.1", **files: str
    ) -> str:
        """Return a URL with all that the server asks for, but for what `files` replaces; an empty
        file leaves its parameter out."""
        query = query_of(files_of_client(self.folder), files)
        return f"zookeeper://{login}{host}:{self.secure_port}/{folder}?{query}"


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperTlsServer]:
    yield from own_server(ZooKeeperTlsServer)


@pytest.mark.parametrize(
    ("host", "mode"), [("127.0.0.1", "verify-full"), ("localhost", "verify-ca")]
)
async def test_leases_work_with_tls_and_only_our_login_may_touch_what_we_create(
    host: str, mode: str, server: ZooKeeperTlsServer, sqlite_url: str
) -> None:
    folder = server.fresh_name()
    app = App(sqlite_url, coordinator=server.secure_url(folder, host=host, sslmode=mode))
    app.migrate()
    node = app.node()
    serving = asyncio.create_task(node.run())
    await node.ready.wait()
    assert await app.connections.coordinator.acquire(["other"], "somebody", 4.0)
    endpoint = ZooKeeperEndpoint.of(server.secure_url(folder))
    session = await asyncio.to_thread(Session, endpoint, 4.0)
    ours = [make_digest_acl("app", PASSWORD, all=True)]
    for path in (f"/{folder}", f"/{folder}/leases/held", f"/{folder}/leases/ids"):
        assert session.client.get_acls(path)[0] == ours
    session.close()
    stranger = ZooKeeperEndpoint.of(server.secure_url(folder, login="other:login@"))
    session = await asyncio.to_thread(Session, stranger, 4.0)
    with pytest.raises(ConfigurationError, match="refused access"):
        session.make_folder(f"/{folder}/more")
    session.close()
    node.stop()
    await serving
    app.close()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"login": "app:wrong@"}, "check user and password in its URL"),
        ({"host": "localhost"}, "another name than the URL: use a host that it names"),
        pytest.param({"login": ""}, "check user and password in its URL", marks=LONG),
        pytest.param(
            {"sslrootcert": "{other}/ca.crt"},
            "name the file of the authority, sslrootcert=FILE",
            marks=LONG,
        ),
        pytest.param(
            {"sslcert": "{other}/client.crt", "sslkey": "{other}/client.key"},
            "name one that it accepts, sslcert=FILE and sslkey=FILE",
            marks=LONG,
        ),
        pytest.param(
            {"sslcert": "", "sslkey": ""}, "name one that it accepts, sslcert=FILE", marks=LONG
        ),
    ],
)
async def test_a_refusal_ends_a_worker_with_one_line_that_names_cause_and_cure(
    changes: dict[str, str], cause: str, server: ZooKeeperTlsServer, sqlite_url: str, tmp_path: Path
) -> None:
    folder = server.fresh_name()
    owner = await asyncio.to_thread(Session, ZooKeeperEndpoint.of(server.secure_url(folder)), 4.0)
    owner.make_folder(f"/{folder}")
    owner.close()
    App(sqlite_url).migrate()
    url = server.secure_url(folder, **with_other_files(changes, tmp_path))
    app = App(sqlite_url, coordinator=url)
    line = await refusal_of(app)
    assert cause in line and "ZooKeeper at" in line
    app.close()


@LONG
async def test_a_url_without_tls_ends_a_worker_of_a_port_that_asks_for_it_and_the_other_way_round(
    server: ZooKeeperTlsServer, sqlite_url: str
) -> None:
    App(sqlite_url).migrate()
    without = f"zookeeper://127.0.0.1:{server.secure_port}/{server.fresh_name()}"
    app = App(sqlite_url, coordinator=without)
    assert "asks for TLS on this port: write sslmode=verify-full" in await refusal_of(app)
    app.close()
    url = server.secure_url(server.fresh_name())
    app = App(sqlite_url, coordinator=url.replace(str(server.secure_port), str(server.port)))
    assert "has no TLS on this port" in await refusal_of(app)
    app.close()
