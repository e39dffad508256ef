"""Bad states of a real ZooKeeper: a worker waits out each of them, and the cause has one line."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

pytest.importorskip("kazoo", reason="needs the extra zookeeper")
from kazoo.client import KazooClient  # noqa: E402
from kazoo.exceptions import BadArgumentsError  # noqa: E402

from fairlead import App, ClusterLimit  # noqa: E402
from fairlead.engine.node import Node  # noqa: E402
from fairlead.errors import StoreUnavailable  # noqa: E402
from fairlead.operate.doctor import examine  # noqa: E402
from fairlead.testing import running  # noqa: E402
from services.zookeeper import ZooKeeperPeer, ZooKeeperServer  # noqa: E402
from tests import tiers  # noqa: E402
from tests.conftest import own_server, skip_if_missing  # noqa: E402
from tests.contract.test_coordinator import end_session  # noqa: E402
from tests.damage import damaged, fuzz_count  # noqa: E402

SOON = 60.0
LEASE_SECONDS = 2.0
LOST_CONNECTION = "the connection to ZooKeeper is lost"
EXPIRED = "the session with ZooKeeper has expired; its leases are free"


class Shop:
    """An application with leases in ZooKeeper, and a record of its runs."""

    def __init__(self, store_url: str, coordinator: str) -> None:
        self.app = App(store_url, coordinator=coordinator)
        self.app.queue("mail", partitions=2)
        self.ran: asyncio.Queue[int] = asyncio.Queue()

        async def run(number: int) -> None:
            self.ran.put_nowait(number)

        limit = ClusterLimit(5)
        self.task: Any = self.app.task(queue="mail", name="run", concurrency=limit)(run)
        self.app.migrate()

    async def run(self, number: int) -> None:
        """Submit a task, and return when it has run."""
        await self.task.submit_async(number=number)
        async with asyncio.timeout(SOON):
            while await self.ran.get() != number:
                pass

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Node]:
        """Serve during the block. The worker must still serve at its end."""
        async with running(self.app, lease_seconds=LEASE_SECONDS) as node:
            yield node
            assert node.not_ready is None
        self.app.close()

    async def problems(self) -> list[str]:
        found = await examine(self.app.operate_context)
        return [each.what for each in found if each.severity == "problem"]


@contextmanager
def foreign(url: str) -> Iterator[tuple[KazooClient, str]]:
    """Give a client of another program, and the folder of the application."""
    hosts, _, root = url.removeprefix("zookeeper://").partition("/")
    client = KazooClient(hosts)
    client.start()
    try:
        yield client, f"/{root}"
    finally:
        client.stop()
        client.close()


async def test_expired_sessions_end_no_worker(sqlite_url: str, zookeeper_url: str) -> None:
    shop = Shop(sqlite_url, zookeeper_url)
    async with shop.serving():
        for number in range(3):
            await shop.run(number)
            coordinator: Any = shop.app.connections.coordinator
            for session in [each for each in coordinator._sessions.values() if each.id]:
                await asyncio.to_thread(end_session, session)
        await shop.run(3)


@pytest.mark.nightly("an outage")
async def test_a_server_that_hangs_beyond_the_session_timeout_ends_no_worker(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for server in own_server(ZooKeeperServer):
        shop = Shop(sqlite_url, server.create_root())
        async with shop.serving():
            await shop.run(0)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(StoreUnavailable, match="does not respond"):
                    for _ in range(10):
                        await shop.app.connections.coordinator.owners()
                        await asyncio.sleep(1.0)
                await asyncio.sleep(2 * LEASE_SECONDS)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await shop.run(1)
    lines = [each.getMessage() for each in caplog.records if each.name == "fairlead.zookeeper"]
    released = "leases released: their owner did not renew them in time"
    assert set(lines) <= {LOST_CONNECTION, EXPIRED, released}
    assert lines.count(LOST_CONNECTION) <= 2 and lines.count(EXPIRED) <= 2  # two sessions


@pytest.mark.nightly("an outage")
async def test_servers_without_a_quorum_end_no_worker_and_are_named(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with skip_if_missing("zookeeper"):
        first, second = ZooKeeperPeer.pair()
    with first, second:
        hosts = ",".join(each.url.removeprefix("zookeeper://") for each in (first, second))
        shop = Shop(sqlite_url, f"zookeeper://{hosts}/shop")
        async with shop.serving():
            await shop.run(0)
            second.crash()
            while b"Mode: read-only" not in first.status():
                await asyncio.sleep(0.1)
            caplog.clear()
            with pytest.raises(StoreUnavailable, match="no quorum: start the other servers"):
                await shop.app.connections.coordinator.owners()
            (found,) = [each for each in await shop.problems() if "ZooKeeper" in each]
            assert "no quorum: start the other servers" in found
            second.start()
            await shop.run(1)


@pytest.mark.fuzz
async def test_damaged_and_foreign_znodes_end_no_worker(
    sqlite_url: str, zookeeper_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(sqlite_url, zookeeper_url)
    caplog.set_level(logging.ERROR)
    names = [b"partition%2Fmail%2F0;1", b"a;1", b"partition%2Fmail%2F1;2", b"poller;9"]
    owners = [b'"node-1"', b'"two"']
    with foreign(zookeeper_url) as (client, root):
        async with shop.serving() as node:
            await shop.run(0)
            made = []
            count = fuzz_count(300)
            nodes = damaged(names, count, tiers.seed())
            for name, data in zip(nodes, damaged(owners, count, tiers.seed() + 1), strict=True):
                text = name.decode(errors="ignore").replace("/", "").replace("\x00", "")[:200]
                try:
                    made.append(client.create_async(f"{root}/leases/held/{text or 'x'}", data))
                    made.append(client.create_async(f"{root}/leases/ids/{text or 'x'}", data))
                except (ValueError, BadArgumentsError):
                    continue  # no name of a znode
                if len(made) > 100:
                    await asyncio.to_thread(lambda: [each.wait() for each in made])
                    made.clear()
                    node.parts.ownership.poke()
            await shop.run(1)
            found = await examine(shop.app.operate_context)
            assert found
            for each in client.get_children(f"{root}/permits"):
                client.set(f"{root}/permits/{each}", b"[" * 5000)
            for _ in range(100):
                if problems := [each for each in await shop.problems() if "permit ledger" in each]:
                    break
            assert problems
            for each in client.get_children(f"{root}/permits"):
                client.delete(f"{root}/permits/{each}", recursive=True)
            await shop.run(2)
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("the permit ledger of a cluster-wide limit cannot be read") <= 1
