"""Writes that replicas must confirm (`wait_replicas`), on a real master and its replica."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead import App  # noqa: E402
from fairlead.errors import ConfigurationError, NotReplicated  # noqa: E402
from fairlead.sharded import ShardedQueue, SyncShardedQueue  # noqa: E402
from fairlead.testing import drain  # noqa: E402
from services.redis_group import RedisGroup  # noqa: E402
from tests.sharded_queues import Awaited  # noqa: E402

OPTIONS = "?wait_replicas=1&wait_ms=200"
MESSAGE = "0 of 1 replicas confirmed it within 200 ms"


@pytest.fixture(scope="module")
def pair(redis_server: Any) -> Iterator[RedisGroup]:
    """A master and a replica without Sentinels. No test here changes their roles for good."""
    with RedisGroup(sentinels=0) as found:
        yield found


@pytest.fixture
def url(pair: RedisGroup) -> str:
    with pair.master.operator() as client:
        client.flushall()
        client.script_flush()
        client.wait(1, 5000)
    return pair.master.url


@contextmanager
def stopped_replica(pair: RedisGroup) -> Iterator[None]:
    """Stop the process of the replica, whose connection stays open."""
    pid = pair.members[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def keys_of_replica(pair: RedisGroup, pattern: str) -> int:
    with pair.members[1].operator() as client:
        return len(client.keys(pattern))


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_write_returns_when_the_replica_has_it_and_raises_if_not(
    pair: RedisGroup, url: str, kind: str
) -> None:
    queue: Any = (
        ShardedQueue(url + OPTIONS, "q")
        if kind == "asynchronous"
        else Awaited(SyncShardedQueue(url + OPTIONS, "q"))
    )
    for n in range(20):
        await queue.write({"n": n})
    with pair.members[1].operator() as replica, SyncShardedQueue(replica, "q") as copy:
        assert copy.len() == 20
        with stopped_replica(pair), pytest.raises(NotReplicated, match=MESSAGE):
            await queue.write({"n": 20})
        await queue.write({"n": 21})
        assert copy.len() == 22, "the write that was not confirmed was not undone"
    await queue.close()


async def test_a_submit_that_was_not_confirmed_is_neither_lost_nor_doubled_by_a_retry(
    pair: RedisGroup, url: str
) -> None:
    ran: list[int] = []

    def new_app(url: str) -> tuple[App, Any]:
        app = App(url)

        @app.task(name="note")
        async def note(n: int) -> None:
            ran.append(n)

        return app, note.options(unique_key="order 7")

    app, note = new_app(url + OPTIONS)
    with stopped_replica(pair):
        with pytest.raises(NotReplicated, match=MESSAGE):
            note.submit(7)
        with pytest.raises(NotReplicated, match=MESSAGE):
            note.submit(7)
        other, again = new_app(url + OPTIONS)  # whose connection has written nothing
        with pytest.raises(NotReplicated, match=MESSAGE):
            await again.submit_async(7)
        other.close()
    confirmed = note.submit(7)
    assert note.submit(7).id == confirmed.id
    app.close()
    with pair.members[1].operator() as client:
        client.replicaof("NO", "ONE")
        promoted, _ = new_app(pair.members[1].url)
        await drain(promoted)
        promoted.close()
    pair.follow(pair.members[1])
    assert ran == [7]


async def test_what_an_operator_changes_is_confirmed_too(pair: RedisGroup, url: str) -> None:
    app = App(url + OPTIONS)

    @app.task
    async def note(n: int) -> None: ...

    note.submit(1)
    with stopped_replica(pair):
        with pytest.raises(NotReplicated):
            app.management.pause("default")
        with pytest.raises(NotReplicated):
            app.management.set_weight("default", "acme", 2.0)
    app.management.pause("default")
    assert keys_of_replica(pair, "{fairlead}:paused") == 1
    app.close()


async def test_the_end_of_a_run_waits_for_no_replica(pair: RedisGroup, url: str) -> None:
    app = App(url + OPTIONS)
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    note.submit(1)
    with stopped_replica(pair):
        await drain(app)
    app.close()
    assert ran == [1]


def test_triggers_need_no_confirmation(url: str, sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="wait_replicas.*rows"):
        App(sqlite_url, channel=url + OPTIONS).migrate()
