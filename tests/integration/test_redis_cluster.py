"""URLs of a Redis cluster, on a real cluster of three servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead import App, Fixed, Retry  # noqa: E402
from fairlead.errors import ConfigurationError, StoreUnavailable  # noqa: E402
from fairlead.model import State  # noqa: E402
from fairlead.operate.doctor import examine  # noqa: E402
from fairlead.sharded import Empty, ShardedQueue, SyncShardedQueue  # noqa: E402
from fairlead.testing import running, settled  # noqa: E402
from services.redis_cluster import RedisCluster  # noqa: E402
from tests import tiers  # noqa: E402
from tests.sharded_queues import Awaited, until  # noqa: E402

kinds = pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
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


def queue_on(url: str, kind: str, name: str = "q") -> Any:
    """Return a queue of this kind, with methods to await."""
    if kind == "asynchronous":
        return ShardedQueue(url, name)
    return Awaited(SyncShardedQueue(url, name))


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


@pytest.mark.parametrize("role", tiers.matrix("store", "channel"))
async def test_a_worker_runs_tasks_of_queues_on_different_servers(
    cluster: RedisCluster, url: str, role: str, sqlite_url: str
) -> None:
    app = App(f"{url}?reclaim=2") if role == "store" else App(sqlite_url, channel=url)
    app.migrate()
    ran: list[tuple[str, int]] = []
    tried: set[int] = set()

    def declare(queue: str) -> Any:
        @app.task(name=f"note_{queue}", queue=queue)
        async def note(n: int) -> None:
            if n == 1 and queue == QUEUES[0] and n not in tried:
                tried.add(n)
                raise Retry(0.01)
            ran.append((queue, n))

        return note

    tasks = {queue: declare(queue) for queue in QUEUES}
    async with running(app) as node:
        for queue, task in tasks.items():
            task.submit_many([{"n": n} for n in range(20)])
            await task.options(priority=2).submit_async(n=20)
        await until(lambda: len(ran) == 21 * len(QUEUES))
        await settled(app, node)
        found = await examine(app.operate_context)
        assert [each.what for each in found if each.severity == "problem"] == []
    app.close()
    assert sorted(ran) == [(queue, n) for queue in QUEUES for n in range(21)]
    assert min(cluster.sizes()) > 0, "every server has a queue"


@pytest.mark.full("the matrix")
async def test_a_unique_key_and_a_dead_letter_on_a_cluster(url: str) -> None:
    app = App(url)

    @app.task(retry=Fixed(0.01, max_attempts=1))
    async def fail(n: int) -> None:
        raise ValueError(n)

    first = fail.options(unique_key="once").submit(n=1)
    assert fail.options(unique_key="once").submit(n=1).id == first.id
    async with running(app) as node:
        await settled(app, node)
    assert [task.id for task in app.management.find(state=State.ERROR)] == [first.id]
    app.close()


@pytest.mark.full("an outage")
@pytest.mark.parametrize("role", ["store", "channel"])
async def test_a_worker_waits_for_a_server_of_the_cluster_that_is_down(
    cluster: RedisCluster, url: str, role: str, sqlite_url: str
) -> None:
    app = App(f"{url}?reclaim=2") if role == "store" else App(sqlite_url, channel=url)
    app.migrate()
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with running(app) as node:
        await note.submit_async(1)
        await settled(app, node)
        for member in cluster.members:
            member.crash()
        if role == "store":
            with pytest.raises(StoreUnavailable):
                await note.submit_async(2)
        for member in cluster.members:
            member.start()
        await asyncio.to_thread(cluster.wait_until_ok)
        await note.submit_async(3)
        await until(lambda: 3 in ran)
    app.close()


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


@kinds
async def test_a_cluster_that_does_not_respond_is_unavailable(kind: str) -> None:
    queue = queue_on("redis+cluster://127.0.0.1:1", kind)
    with pytest.raises(StoreUnavailable, match="no server of the Redis cluster responds"):
        await queue.write({"n": 1})
    await queue.close()
