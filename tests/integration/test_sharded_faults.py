"""The sharded queue under faults of consumers, scripts and the server, and on a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead.errors import FairleadError, StoreUnavailable
from services.redis import RedisServer

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import (  # noqa: E402
    Empty,
    ShardedQueue,
    SyncShardedQueue,
)
from fairlead.sharded.running import result_of, run  # noqa: E402
from fairlead.sharded.script import WRITE  # noqa: E402
from fairlead.sharded.steps import Command, RunScript, WaitForEntry  # noqa: E402
from tests.sharded_queues import SOON, drain  # noqa: E402
from tests.waiting import until  # noqa: E402


@pytest.fixture
def queue(redis_url: str) -> Any:
    with SyncShardedQueue(
        redis_url, "q", streams=8, streams_per_shard=2, max_deliveries=3
    ) as found:
        yield found


def test_messages_of_a_dead_consumer_are_reclaimed_with_their_deliveries_counted(
    queue, client
) -> None:
    written = {queue.write({"n": n}, shard_key=f"k{n}") for n in range(20)}
    client.xadd("q", {"n": 20})
    claimed = drain(queue, consumer="dead", ack=False)
    assert [message.deliveries for message in claimed] == [1] * 21
    assert queue.reclaim("g", "live", min_idle=3600) == [], "its consumer may still work on it"
    reclaimed: list[Any] = []
    while part := queue.reclaim("g", "live", min_idle=0, count=4):
        reclaimed += part
        queue.ack("g", *(message.id for message in part))
    assert len(reclaimed) == 21
    assert {message.id for message in reclaimed} >= written
    assert {(message.id, message.values["n"], message.shard_key) for message in reclaimed} == {
        (message.id, message.values["n"], message.shard_key) for message in claimed
    }
    assert {message.deliveries for message in reclaimed} == {2}
    found = queue.stats("g")
    assert (found.messages, found.pending) == (0, 0)


def test_a_message_that_is_never_acknowledged_becomes_a_dead_letter(queue) -> None:
    poison = queue.write(
        {"n": b"\xff"}, shard_key="acme", deadline=datetime.now(UTC) + timedelta(hours=1)
    )
    assert queue.read("g", "c1").deliveries == 1
    for consumer, expected in (("c2", 2), ("c3", 3)):
        (message,) = queue.reclaim("g", consumer, min_idle=0)
        assert (message.id, message.deliveries) == (poison, expected)
    assert queue.reclaim("g", "c4", min_idle=0) == []
    (dead,) = queue.dead_letter_heads()
    assert (dead.id, dead.values, dead.shard_key, dead.deliveries) == (
        poison,
        {"n": b"\xff"},
        "acme",
        3,
    )
    found = queue.stats("g")
    assert (found.messages, found.pending, found.dead, found.cordoned) == (0, 0, 1, 0)


def test_a_dead_letter_of_one_group_stays_a_message_of_the_other(queue) -> None:
    id = queue.write({"n": 1})
    queue.read("sick", "c")
    queue.read("well", "c")
    for _ in range(3):
        queue.reclaim("sick", "c", min_idle=0)
    assert [dead.id for dead in queue.dead_letter_heads()] == [id]
    assert queue.ack("well", id) == 1
    assert queue.len() == 0


def test_reclaim_cordons_messages_past_their_deadline(queue) -> None:
    id = queue.write({"n": 1}, deadline=datetime.now(UTC) + timedelta(seconds=0.4))
    claimed = queue.read("g", "c")
    while datetime.now(UTC) <= claimed.deadline:  # wait until the deadline
        assert queue.cordon() == [], "a claimed message is not cordoned"
    assert queue.cordon() == []
    assert queue.reclaim("g", "d", min_idle=0) == []
    assert [(each.id, each.deliveries) for each in queue.cordoned()] == [(id, 1)]
    assert queue.len() == 0


def test_reclaim_drops_silent_consumers_a_few_at_a_time(queue, client) -> None:
    for n in range(200):
        queue.write({"n": n})
        queue.ack("g", queue.read("g", f"c{n}").id)
    queue.write({"n": 0})
    queue.read("g", "c0")
    for n in range(199):
        client.zincrby("{q}:consumers:g", -3_600_000, f"c{n}")
    left = []
    while not left or left[-1] > 2:
        assert queue.reclaim("g", "d", min_idle=60) == []
        left.append(client.zcard("{q}:consumers:g"))
        assert len(left) < 10
    assert len(left) > 1, "not all at once"
    streams = client.keys("{q}:s[0-9]*")
    names = {each["name"] for key in streams for each in client.xinfo_consumers(key, "g")}
    assert names == {b"c0", b"c199"}, "one has a claim, and one has just read"


def test_cordon_looks_at_a_claimed_message_at_most_once(queue, client) -> None:
    for n in range(3):
        queue.write({"n": n}, deadline=datetime.now(UTC) + timedelta(hours=1))
    queue.read("g", "c")
    assert client.zcard("{q}:deadlines") == 2
    for key in client.keys("{q}:s?"):
        client.xgroup_create(key, "plain", "0")
        client.xreadgroup("plain", "c", {key: ">"})
    client.zadd("{q}:deadlines", dict.fromkeys(client.zrange("{q}:deadlines", 0, -1), 1))
    assert queue.cordon() == []
    assert client.zcard("{q}:deadlines") == 0
    assert queue.len() == 3


async def test_scripts_that_the_server_drops_under_load_are_loaded_again(redis_url, client) -> None:
    read: Counter[str] = Counter()
    async with ShardedQueue(redis_url, "q", streams=8, streams_per_shard=2) as queue:

        async def write(key: str) -> list[str]:
            return [await queue.write({"n": n}, shard_key=key) for n in range(100)]

        async def consume(consumer: str) -> None:
            while True:
                message = await queue.read("g", consumer, block=SOON)
                read[message.id] += 1
                await queue.ack("g", message.id)

        consumers = [asyncio.create_task(consume(f"c{n}")) for n in range(3)]
        writing = asyncio.gather(*(write(f"k{n}") for n in range(3)))
        flushed = 0
        while not writing.done():
            await asyncio.to_thread(client.script_flush)
            flushed += 1
        written = [id for ids in await writing for id in ids]
        await until(lambda: read.total() == 300)
        for consumer in consumers:
            assert not consumer.done()
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
    assert flushed > 5
    assert read == Counter(written)


@pytest.mark.usefixtures("redis_server")  # skips the test without Redis
async def test_a_restart_of_the_server_under_load_loses_nothing() -> None:
    """Redis keeps every confirmed write (appendonly). A write whose response is lost is repeated, so
    its message may be there twice."""
    with RedisServer(appendonly=True) as server:
        written: set[int] = set()
        read: set[int] = set()
        stop = asyncio.Event()
        async with ShardedQueue(
            server.url, "q", streams=8, streams_per_shard=2, max_deliveries=100
        ) as queue:

            async def again(what: Any) -> Any:
                while True:
                    try:
                        return await what()
                    except StoreUnavailable:
                        await asyncio.sleep(0.01)

            async def write(first: int) -> None:
                n = first
                while not stop.is_set():
                    await again(lambda: queue.write({"n": n}, shard_key=f"k{n % 7}"))
                    written.add(n)
                    n += 1

            async def consume(consumer: str) -> None:
                while not (stop.is_set() and read >= written):
                    try:
                        message = await again(lambda: queue.read("g", consumer, block=0.2))
                    except Empty:
                        for message in await again(
                            lambda: queue.reclaim("g", consumer, min_idle=0.5)
                        ):
                            read.add(int(message.values["n"]))
                            await again(lambda: queue.ack("g", message.id))
                        continue
                    read.add(int(message.values["n"]))
                    await again(lambda: queue.ack("g", message.id))

            async with asyncio.timeout(4 * SOON), asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(write(1_000_000 * n))
                    group.create_task(consume(f"c{n}"))
                for _ in range(2):
                    before = len(written)
                    await until(lambda: len(written) > before + 100)
                    await asyncio.to_thread(server.restart)
                before = len(written)
                await until(lambda: len(written) > before + 50)
                stop.set()
            assert len(written) > 250
            assert read == written


async def test_steps_may_go_on_after_a_command_that_failed(redis_url: str, client: Any) -> None:
    """A script of a key of another kind fails; the next command is run, and its response returned."""
    client.set("q", "text")
    client.xadd("stream", {"n": 1})

    def steps() -> Generator[Command, Any, str]:
        try:
            yield RunScript(WRITE, "q", ())
        except FairleadError:
            found = yield WaitForEntry({"stream": "0"}, 1000)
        return f"found {found}"

    assert result_of(run(client, "q", steps())) == "found True"
    async with redis.asyncio.Redis.from_url(redis_url) as other:
        assert await run(other, "q", steps()) == "found True"
