"""Writes that replicas must confirm (`wait_replicas`), on a real master and its replica."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import NotReplicated, SyncShardedQueue  # noqa: E402
from services.redis_group import RedisGroup  # noqa: E402
from tests.sharded_queues import kinds, queue_on  # noqa: E402

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


@kinds
async def test_a_write_returns_when_the_replica_has_it_and_raises_if_not(
    pair: RedisGroup, url: str, kind: str
) -> None:
    queue = queue_on(url + OPTIONS, kind)
    for n in range(20):
        await queue.write({"n": n})
    with pair.members[1].operator() as replica, SyncShardedQueue(replica, "q") as copy:
        assert copy.len() == 20
        with stopped_replica(pair), pytest.raises(NotReplicated, match=MESSAGE):
            await queue.write({"n": 20})
        await queue.write({"n": 21})
        assert copy.len() == 22, "the write that was not confirmed was not undone"
    await queue.close()


async def test_what_an_operator_changes_is_confirmed_and_the_end_of_a_claim_is_not(
    pair: RedisGroup, url: str
) -> None:
    with SyncShardedQueue(url + OPTIONS, "q") as queue:
        deleted = queue.write({"n": 0})
        written = queue.write({"n": 1})
        with stopped_replica(pair):
            with pytest.raises(NotReplicated):
                queue.set_weight("acme", 2.0)
            with pytest.raises(NotReplicated):
                queue.delete(deleted)
            assert queue.read("g", "c").id == written
            assert queue.ack("g", written) == 1
        queue.set_weight("acme", 2.0)
        assert keys_of_replica(pair, "{q}:weights") == 1
