"""The sharded queue on a cluster of two real servers, while the slot of the queue moves from one to
the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.errors import ConfigurationError, StoreUnavailable  # noqa: E402
from fairlead.sharded import Empty, ShardedQueue, SyncShardedQueue  # noqa: E402
from tests import tiers
from tests.redis_states import ClusterServer  # noqa: E402
from tests.sharded_queues import Awaited  # noqa: E402
from tests.waiting import wait_until  # noqa: E402


class Cluster:
    """A cluster of two servers, of which the first has all slots."""

    def __init__(self, source: ClusterServer, target: ClusterServer) -> None:
        self.servers = source, target
        self.source, self.target = source.operator(), target.operator()
        self.source.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        port = self.target.config_get("cluster-port")["cluster-port"]
        self.source.execute_command("CLUSTER", "MEET", "127.0.0.1", target.port, port)
        for client in (self.source, self.target):
            wait_until(lambda client=client: client.cluster("INFO")["cluster_state"] == "ok")
            wait_until(lambda client=client: len(client.cluster("NODES")) == 2)
        self._slot = int(self.source.execute_command("CLUSTER", "KEYSLOT", "q"))

    def keys(self, client: Any) -> list[bytes]:
        return client.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, 1000)

    def begin(self) -> None:
        """Begin to move the slot of the queue q."""
        ids = [client.cluster("MYID").decode() for client in (self.source, self.target)]
        self.target.execute_command("CLUSTER", "SETSLOT", self._slot, "IMPORTING", ids[0])
        self.source.execute_command("CLUSTER", "SETSLOT", self._slot, "MIGRATING", ids[1])

    def move(self, *keys: bytes) -> None:
        """Move keys of the slot."""
        _, target = self.servers
        arguments = ["AUTH", target._password, "KEYS", *keys]
        self.source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, *arguments)

    def end(self) -> None:
        """Give the slot to the other server."""
        node = self.target.cluster("MYID").decode()
        for client in (self.target, self.source):
            client.execute_command("CLUSTER", "SETSLOT", self._slot, "NODE", node)

    def close(self) -> None:
        self.source.close()
        self.target.close()


@pytest.fixture
def cluster(redis_server: Any) -> Iterator[Cluster]:
    source, target = ClusterServer(), ClusterServer()
    target.shares_password_of(source)
    with source, target:
        found = Cluster(source, target)
        yield found
        found.close()


async def result(call: Any) -> Any:
    """Run a call, and return its result, or None while the slot moves. Raise any other error."""
    try:
        return await call
    except StoreUnavailable:
        return None


# A slot moves for seconds. Both clients run the same steps, so each is in `make test` with one kind
# of read.
@pytest.mark.parametrize(
    ("kind", "reads"),
    [
        ("asynchronous", "tenants"),
        ("synchronous", "streams"),
        pytest.param("asynchronous", "streams", marks=tiers.NIGHTLY("the matrix")),
        pytest.param("synchronous", "tenants", marks=tiers.NIGHTLY("the matrix")),
    ],
)
async def test_a_slot_that_moves_raises_only_store_unavailable_and_loses_nothing(
    cluster: Cluster, kind: str, reads: Any
) -> None:
    url = cluster.servers[0].url
    client: Any
    if kind == "asynchronous":
        client = redis.asyncio.RedisCluster.from_url(url)
        queue: Any = ShardedQueue(
            client, "q", streams=8, streams_per_shard=2, reads=reads, max_deliveries=1
        )
    else:
        client = redis.RedisCluster.from_url(url)
        queue = Awaited(
            SyncShardedQueue(
                client, "q", streams=8, streams_per_shard=2, reads=reads, max_deliveries=1
            )
        )
    written = [await queue.write({"n": n}, shard_key=f"k{n}") for n in range(20)]
    dead = [(await queue.read("g", "c")).id for _ in range(3)]
    assert await queue.nack("g", "c", *dead) == dead
    assert len(await queue.dead_letter_heads()) == 3
    for id in dead:
        written.remove(id)
    held = [(await queue.read("g", "c")).id for _ in range(5)]
    cluster.begin()
    keys = cluster.keys(cluster.source)
    refused = 0
    for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
        before = count_of(cluster)
        if (id := await result(queue.write({"n": 99}, shard_key="k99"))) is not None:
            written.append(id)
        refused += id is None
        assert count_of(cluster) - before == (id is not None), "no half write"
        if (message := await result(queue.read("g", "c"))) is not None:
            held.append(message.id)
        for call in (
            queue.extend("g", "c", *held),
            queue.stats("g"),
            queue.details("g"),
            queue.cordon(),
            queue.reclaim("g", "d", min_idle=3600),
            queue.dead_letter_heads(),
            queue.dead_letter(dead[0]),
            queue.set_weight("k1", 2.0),
        ):
            await result(call)
        if requeued := await result(queue.requeue_dead_letters(dead[0])):
            dead.remove(requeued[0])
        cluster.move(*part)
    assert refused
    cluster.end()
    assert len(await queue.dead_letter_heads()) == len(dead)
    assert await queue.delete_dead_letters(*dead) == dead
    assert await queue.ack("g", *held) == len(held)
    read = []
    with suppress(Empty):
        while True:
            message = await queue.read("g", "c")
            read.append(message.id)
            await queue.ack("g", message.id)
    assert set(read) >= set(written) - set(held)
    assert len(read) == len(written) - len(held) + 3 - len(dead), "and the requeued letters"
    if kind == "asynchronous":
        await client.aclose()
    else:
        client.close()


def count_of(cluster: Cluster) -> int:
    """Return the number of messages on both servers."""
    found = 0
    for client in (cluster.source, cluster.target):
        for key in cluster.keys(client):
            if key.startswith(b"{q}:s") and key[5:].isdigit():
                with client.pipeline(transaction=False) as both:
                    both.execute_command("ASKING")
                    both.xlen(key)
                    found += both.execute()[1]
    return found


async def test_a_client_of_one_server_on_a_cluster_is_told_what_to_use(cluster: Cluster) -> None:
    async with ShardedQueue(cluster.servers[1].url, "q") as queue:
        with pytest.raises(ConfigurationError, match="node of a cluster"):
            await queue.write({"n": 1})
