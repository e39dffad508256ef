"""A planned failover of Redis: the old master is demoted and stays reachable, and the name in the URL
leads to the new one. Two real servers; the name is a link to the socket of one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.errors import StoreUnavailable  # noqa: E402
from fairlead.sharded import Empty, ShardedQueue, SyncShardedQueue  # noqa: E402
from tests.redis_states import DrivenServer  # noqa: E402
from tests.sharded_queues import queue_on  # noqa: E402
from tests.waiting import until, wait_until  # noqa: E402


class Pair:
    """A master, its replica, and a name that leads to the master."""

    def __init__(self, old: DrivenServer, new: DrivenServer, folder: Path) -> None:
        self.old, self.new = old, new
        self._name = folder / "redis"
        self._name.symlink_to(old.socket)
        self.url = old.url_at(self._name)
        with new.operator() as client:
            client.replicaof(*old.address)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")

    def promote(self) -> None:
        """Make the replica the master, without the loss of a write, and the master its replica."""
        with self.old.operator() as old, self.new.operator() as new:
            old.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
            wait_until(lambda: old.info("replication")["slave0"]["lag"] == 0)
            wait_until(
                lambda: (
                    new.info("replication")["slave_repl_offset"]
                    == old.info("replication")["master_repl_offset"]
                )
            )
            new.replicaof("NO", "ONE")
            old.replicaof(*self.new.address)
            old.execute_command("CLIENT", "UNPAUSE")

    def move(self) -> None:
        """Let the name lead to the new master."""
        link = self._name.with_suffix(".new")
        link.symlink_to(self.new.socket)
        link.rename(self._name)


@pytest.fixture
def pair(tmp_path: Path, redis_server: Any) -> Iterator[Pair]:
    old, new = DrivenServer(), DrivenServer()
    new.shares_password_of(old)
    with old, new:
        yield Pair(old, new, tmp_path)


@pytest.mark.parametrize(
    ("kind", "reads"), [("asynchronous", "tenants"), ("synchronous", "streams")]
)
async def test_a_queue_goes_to_the_new_master_without_an_error(
    pair: Pair, kind: str, reads: Any
) -> None:
    queue = queue_on(pair.url, kind, reads=reads)
    written = [await queue.write({"n": n}) for n in range(2)]
    claimed = await queue.read("g", "c")
    pair.promote()
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await queue.write({"n": 2})
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await queue.read("g", "c")
    pair.move()
    assert (await queue.read("g", "c")).id in written
    written.append(await queue.write({"n": 3}))
    assert await queue.ack("g", claimed.id) == 1
    assert (await queue.read("g", "c")).id == written[-1]
    await queue.close()


@pytest.mark.parametrize(
    ("kind", "reads"), [("asynchronous", "tenants"), ("synchronous", "streams")]
)
async def test_an_idle_reader_of_the_demoted_server_notices(
    pair: Pair, kind: str, reads: Any
) -> None:
    queue = queue_on(pair.url, kind, reads=reads)
    with pytest.raises(Empty):
        await queue.read("g", "c")
    pair.promote()
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await queue.read("g", "c")
    pair.move()
    reading = asyncio.create_task(queue.read("g", "c", block=20.0))
    with SyncShardedQueue(pair.new.url, "q") as writer:
        written = await asyncio.to_thread(writer.write, {"n": 1})
    assert (await reading).id == written
    await queue.close()


@pytest.mark.parametrize("has_moved", [True, False], ids=["moved at once", "moved later"])
async def test_a_waiting_reader_goes_to_the_new_master(pair: Pair, has_moved: bool) -> None:
    async with ShardedQueue(pair.url, "q") as queue:
        reading = asyncio.create_task(queue.read("g", "c", block=20.0))
        with pair.old.operator() as client:
            await until(lambda: any("b" in one["flags"] for one in client.client_list()))
        if has_moved:
            pair.move()
        pair.promote()
        if not has_moved:
            with pytest.raises(StoreUnavailable, match="READONLY"):
                await reading
            pair.move()
            reading = asyncio.create_task(queue.read("g", "c", block=20.0))
        with SyncShardedQueue(pair.new.url, "q") as writer:
            written = await asyncio.to_thread(writer.write, {"n": 1})
        assert (await reading).id == written
