"""A real Redis with a port for TLS, which asks for a certificate, and a user with an ACL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")

from fairlead.errors import ConfigurationError, StoreUnavailable  # noqa: E402
from fairlead.sharded import ShardedQueue, SyncShardedQueue  # noqa: E402
from services.process import free_port  # noqa: E402
from services.redis import RedisServer  # noqa: E402
from tests.certificates import ADDRESS_ONLY, make_certificates  # noqa: E402
from tests.conftest import own_server  # noqa: E402
from tests.integration.tls_kit import (  # noqa: E402
    LOGIN,
    PASSWORD,
    check_line,
    query_of,
    with_other_files,
)


class SecureRedis(RedisServer):
    """A Redis with TLS and the user `app`."""

    def _prepare(self) -> None:
        super()._prepare()
        make_certificates(self.folder, ADDRESS_ONLY)
        self.secure_port = free_port()
        with (self.folder / "redis.conf").open("a") as settings:
            settings.write(
                f"tls-port {self.secure_port}\ntls-cert-file {self.folder}/server.crt\n"
                f"tls-key-file {self.folder}/server.key\ntls-ca-cert-file {self.folder}/ca.crt\n"
                f"tls-auth-clients yes\nuser app on >{PASSWORD} ~* &* +@all\n"
            )

    def secure_url(self, *, login: str = LOGIN, host: str = "127.0.0.1", **files: str) -> str:
        """Return a URL with all that the server asks for, but for what `files` replaces; an empty
        file leaves its parameter out."""
        given = {
            "ssl_ca_certs": f"{self.folder}/ca.crt",
            "ssl_certfile": f"{self.folder}/client.crt",
            "ssl_keyfile": f"{self.folder}/client.key",
        }
        return f"rediss://{login}{host}:{self.secure_port}/0?{query_of(given, files)}"


@pytest.fixture(scope="module")
def server() -> Iterator[SecureRedis]:
    yield from own_server(SecureRedis)


async def refusals_of(url: str) -> tuple[str, str]:
    """Return the line with which the server refuses an asynchronous and a synchronous queue."""
    async with ShardedQueue(url, "shop") as queue:
        with pytest.raises((ConfigurationError, StoreUnavailable)) as by_loop:
            await queue.len()
    with (
        SyncShardedQueue(url, "shop") as sync_queue,
        pytest.raises((ConfigurationError, StoreUnavailable)) as by_threads,
    ):
        sync_queue.len()
    lines = str(by_loop.value), str(by_threads.value)
    for line in lines:
        check_line(line)
    return lines


@pytest.mark.parametrize("changes", [{}, {"host": "localhost", "ssl_check_hostname": "false"}])
async def test_queues_of_both_clients_work_with_tls_and_a_user(
    changes: dict[str, str], server: SecureRedis
) -> None:
    url = server.secure_url(**changes)
    queue = ShardedQueue(url, "shop")
    assert await queue.len() == 0
    await queue.close()
    with contextlib.closing(SyncShardedQueue(url, "shop")) as sync_queue:
        assert sync_queue.len() == 0


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"login": "app:wrong@"}, "check user and password"),
        ({"host": "localhost"}, "another name than the URL: use a host that it names"),
        ({"ssl_ca_certs": "{other}/ca.crt"}, "name the file of the authority, ssl_ca_certs=FILE"),
        (
            {"ssl_certfile": "{other}/client.crt", "ssl_keyfile": "{other}/client.key"},
            "ssl_certfile=FILE and ssl_keyfile=FILE",
        ),
        ({"ssl_certfile": "", "ssl_keyfile": ""}, "ssl_certfile=FILE and ssl_keyfile=FILE"),
    ],
)
async def test_a_refusal_is_one_line_that_names_cause_and_cure(
    changes: dict[str, str], cause: str, server: SecureRedis, tmp_path: Path
) -> None:
    url = server.secure_url(**with_other_files(changes, tmp_path))
    for line in await refusals_of(url):
        assert cause in line and f"{server.secure_port}" in line


@pytest.mark.parametrize(
    "failure",
    [
        redis.ConnectionError("Connection closed by server."),
        redis.ConnectionError("Error while reading from h:1 : (104, 'Connection reset by peer')"),
        redis.ConnectionError("Error 32 while writing to socket. Broken pipe."),
        redis.ConnectionError("EOF occurred in violation of protocol (_ssl.c:2427)"),
    ],
    ids=["closed", "reset", "broken pipe", "EOF"],
)
async def test_a_connection_that_is_closed_before_its_alert_is_read_names_the_certificate(
    failure: Exception, server: SecureRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    for client in (redis.Redis, redis.asyncio.Redis):
        monkeypatch.setattr(client, "execute_command", fail)
    for line in await refusals_of(server.secure_url()):
        assert "ssl_certfile=FILE and ssl_keyfile=FILE" in line


async def test_a_url_with_the_wrong_choice_of_tls_is_refused(server: SecureRedis) -> None:
    without = server.secure_url().replace("rediss", "redis").partition("?")[0]
    for line in await refusals_of(without):
        assert "asks for TLS on this port: write rediss" in line
    url = server.secure_url().replace(str(server.secure_port), str(server.port))
    for line in await refusals_of(url):
        assert "has no TLS on this port" in line
