"""URLs of a Redis cluster, on a real cluster of three servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.errors import ConfigurationError  # noqa: E402
from fairlead.sharded import Empty  # noqa: E402
from services.redis_cluster import RedisCluster  # noqa: E402
from tests.sharded_queues import kinds, queue_on  # noqa: E402

QUEUES = [f"queue{n}" for n in range(4)]
"""Names of queues, of which each server has one or two, with each prefix."""


@pytest.fixture(scope="module")
def cluster(redis_server: Any) -> Iterator[RedisCluster]:
    with RedisCluster("cluster-secret") as found:
        yield found


@pytest.fixture
def url(cluster: RedisCluster) -> str:
    cluster.flush()
    return cluster.url


@kinds
async def test_queues_lie_on_different_servers_and_work(
    cluster: RedisCluster, url: str, kind: str
) -> None:
    for name in QUEUES:
        queue = queue_on(url, kind, name)
        written = await queue.write({"n": 1})
        message = await queue.read("g", "c")
        assert message.id == written
        with pytest.raises(Empty):
            await queue.read("g", "c", block=0.01)
        reading = asyncio.create_task(queue.read("g", "c", block=20.0))
        second = await queue.write({"n": 2})
        assert (await reading).id == second
        assert await queue.ack("g", written, second) == 2
        await queue.close()
    assert min(cluster.sizes()) > 0, "every server has a queue"


@kinds
async def test_the_url_of_one_server_with_the_scheme_of_a_cluster_is_refused(
    redis_url: str, kind: str
) -> None:
    queue = queue_on(redis_url.replace("redis://", "redis+cluster://"), kind)
    with pytest.raises(ConfigurationError, match="no cluster.*redis://"):
        await queue.write({"n": 1})
    await queue.close()


@kinds
async def test_a_wrong_password_of_a_cluster_is_an_error_with_its_cure(url: str, kind: str) -> None:
    queue = queue_on(url.replace("cluster-secret", "wrong-secret"), kind)
    with pytest.raises(ConfigurationError, match="check user and password") as raised:
        await queue.write({"n": 1})
    assert "wrong-secret" not in str(raised.value)
    await queue.close()
