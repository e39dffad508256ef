"""Redis behind Sentinel: a real master, its replica and a Sentinel that names the next master."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.errors import ConfigurationError, StoreUnavailable  # noqa: E402
from fairlead.sharded import Empty, ShardedQueue  # noqa: E402
from services.redis_group import SERVICE, Certificates, RedisGroup  # noqa: E402
from tests.redis_states import NO_MASTER  # noqa: E402
from tests.sharded_queues import kinds, queue_on  # noqa: E402

pytestmark = pytest.mark.usefixtures("redis_server")  # skips the tests without Redis


@pytest.fixture(scope="module")
def group(redis_server: Any) -> Iterator[RedisGroup]:
    with RedisGroup() as found:
        yield found


@pytest.fixture
def url(group: RedisGroup) -> str:
    """Empty the servers, of which two live, and return the URL."""
    group.repair()
    with group.master.operator() as client:
        client.flushall()
        client.wait(1, 5000)
    return group.url


async def persist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Try a call until the failover is over, and return its result."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


@pytest.mark.nightly("an outage")
@kinds
async def test_a_queue_goes_on_at_the_master_that_sentinel_names_next(
    group: RedisGroup, url: str, kind: str
) -> None:
    url += "&wait_replicas=1"
    queue = queue_on(url, kind)
    written = [await queue.write({"n": n}) for n in range(3)]
    await asyncio.to_thread(group.fail_over)
    await queue.close()
    after = url.removesuffix("&wait_replicas=1")  # no replica is left
    queue = queue_on(after, kind)
    read = [(await persist(lambda: queue.read("g", "c"))).id for _ in written]
    assert sorted(read) == sorted(written)
    await queue.close()


@pytest.mark.nightly("an outage")
async def test_a_planned_failover_needs_no_new_client(group: RedisGroup, url: str) -> None:
    async with ShardedQueue(url, "q") as queue:
        first = await queue.write({"n": 1})
        with pytest.raises(Empty):
            await queue.read("h", "c") and await queue.read("h", "c")
        reading = asyncio.create_task(persist(lambda: queue.read("h", "c", block=20.0)))
        await asyncio.to_thread(group.hand_over)
        second = await persist(lambda: queue.write({"n": 2}))
        assert (await reading).id == second
        assert first != second


@kinds
async def test_a_master_that_refuses_writes_while_sentinel_still_names_it_is_said(
    group: RedisGroup, url: str, kind: str
) -> None:
    queue = queue_on(url, kind)
    await queue.write({"n": 1})
    with group.patient(), group.master.operator() as client:
        client.replicaof(*NO_MASTER)
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await queue.write({"n": 2})
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await queue.read("g", "c")
        client.replicaof("NO", "ONE")
        await queue.write({"n": 3})
        assert await queue.len() == 2
    await queue.close()


@kinds
async def test_a_service_that_sentinel_does_not_know_is_named(url: str, kind: str) -> None:
    wrong = url.replace(f"/{SERVICE}/", "/nobody/")
    queue = queue_on(wrong, kind)
    with pytest.raises(StoreUnavailable, match="no Sentinel names a master.*'nobody'"):
        await queue.write({"n": 1})
    await queue.close()


@kinds
async def test_a_login_that_sentinel_refuses_is_an_error_with_its_cure(
    group: RedisGroup, url: str, kind: str
) -> None:
    wrong = url.replace(group.sentinel_password, "wrong-secret")
    queue = queue_on(wrong, kind)
    with pytest.raises(ConfigurationError, match="sentinel_password") as raised:
        await queue.write({"n": 1})
    assert "wrong-secret" not in str(raised.value)
    await queue.close()


@pytest.fixture(scope="module")
def secured(redis_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisGroup]:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "2", "-keyout", folder / "key.pem", "-out", folder / "ca.pem"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
        check=True,
        capture_output=True,
    )
    with RedisGroup(certificates=Certificates(Path(folder))) as found:
        yield found


@kinds
async def test_sentinel_and_servers_speak_tls(secured: RedisGroup, kind: str) -> None:
    secured.repair()  # a busy machine may make the Sentinel replace a living master
    queue = queue_on(secured.url, kind)
    written = await persist(lambda: queue.write({"n": 1}))
    message = await persist(lambda: queue.read("g", "c"))
    assert message.id == written
    await queue.close()


@kinds
async def test_a_certificate_of_a_stranger_is_refused(secured: RedisGroup, kind: str) -> None:
    unknown = secured.url.partition("&ssl_ca_certs")[0]
    queue = queue_on(unknown, kind)
    with pytest.raises(StoreUnavailable, match="no Sentinel"):
        await queue.write({"n": 1})
    await queue.close()
