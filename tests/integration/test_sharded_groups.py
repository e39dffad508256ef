"""Groups of readers, beside old producers and consumers of a plain stream."""

from __future__ import annotations

import asyncio
import time

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import (  # noqa: E402
    Empty,
    ShardedQueue,
    steps,
)
from tests.sharded_queues import SOON, until  # noqa: E402


async def test_each_group_gets_every_message_and_the_last_to_acknowledge_frees_it(queue) -> None:
    for group in ("one", "two"):
        with pytest.raises(Empty):
            await queue.read(group, "c")
    written = {await queue.write({"n": n}, shard_key=f"k{n}") for n in range(6)}
    first = [(await queue.read("one", "c")).id for _ in range(6)]
    assert await queue.ack("one", *first) == 6
    assert await queue.len() == 6, "the other group has read no stream yet"
    second = [(await queue.read("two", "c")).id for _ in range(6)]
    assert set(first) == set(second) == written
    for left in range(5, -1, -1):
        assert await queue.ack("two", second[left]) == 1
        assert await queue.len() == left


async def test_a_dropped_group_holds_back_no_message(queue) -> None:
    for group in ("one", "two"):
        with pytest.raises(Empty):
            await queue.read(group, "c")
    written = [await queue.write({"n": n}, shard_key=f"k{n}") for n in range(6)]
    done = [(await queue.read("one", "c")).id for _ in range(4)]
    await queue.read("two", "c")
    await queue.ack("one", *done)
    assert await queue.len() == 6
    assert await queue.drop_group("two") == 4
    assert await queue.len() == 2
    rest = [(await queue.read("one", "c")).id for _ in range(2)]
    assert sorted([*done, *rest]) == sorted(written)
    await queue.ack("one", *rest)
    assert await queue.len() == 0
    last = await queue.write({"n": 6})
    assert await queue.drop_group("one") == 0
    assert (await queue.read("three", "c")).id == last, "the waiting message is still delivered"


async def test_a_dropped_group_with_empty_streams_holds_back_no_message(
    queue,
) -> None:
    written = {await queue.write({"n": n}) for n in range(2)}
    for group in ("one", "two"):
        assert {(await queue.read(group, "c")).id for _ in written} == written
    for group in ("one", "two"):
        await queue.ack(group, *written)
    assert await queue.drop_group("two") == 0
    for n in range(2):
        id = await queue.write({"n": n})
        await queue.read("one", "c")
        assert await queue.ack("one", id) == 1
        assert await queue.len() == 0, "no other group waits for the message"


async def test_messages_acknowledged_by_one_group_wait_only_for_the_others(
    queue,
) -> None:
    for group in ("one", "two"):
        with pytest.raises(Empty):
            await queue.read(group, "c")
    for n in range(6):
        await queue.write({"n": n})
    for _ in range(4):
        await queue.ack("one", (await queue.read("one", "c")).id)
    await queue.read("one", "c")
    one, two = await queue.stats("one"), await queue.stats("two")
    assert (one.messages, one.pending, one.waiting) == (6, 1, 1)
    assert (two.messages, two.pending, two.waiting) == (6, 0, 6)


async def test_entries_that_old_consumers_acknowledged_but_left_do_not_wait(queue, client) -> None:
    client.xgroup_create("q", "q", "0", mkstream=True)
    for n in range(5):
        client.xadd("q", {"n": n})
    ((_, entries),) = client.xreadgroup("q", "old", {"q": ">"}, count=4)
    client.xack("q", "q", *(id for id, _ in entries[:3]))
    found = await queue.stats("g")
    assert (found.messages, found.pending, found.waiting) == (5, 1, 1)


async def test_old_producers_and_consumers_of_the_plain_stream_work_beside_new_ones(
    queue, client
) -> None:
    """Producers XADD to the stream with the queue's name, and consumers read in the group of that
    name; each message goes to one of them."""
    client.xadd("q", {"n": 0})
    client.xgroup_create("q", "q", "0")
    for n in range(1, 10):
        client.xadd("q", {"n": n})
    old = [client.xreadgroup("q", "old", {"q": ">"}, count=1) for _ in range(3)]
    for n in range(10, 15):
        await queue.write({"n": n})
    new = [await queue.read("g", "c") for _ in range(12)]
    with pytest.raises(Empty):
        await queue.read("g", "c")
    assert len(old) == 3
    assert sorted(int(message.values["n"]) for message in new) == list(range(3, 15))
    assert await queue.ack("g", *(message.id for message in new)) == 12
    assert await queue.len() == 3, "messages held by old consumers still count"
    assert client.pttl("q") == -1, "the stream of the old consumers does not expire"


async def test_old_and_new_producers_and_consumers_drain_the_queue_without_a_gap(
    redis_url,
) -> None:
    """The old consumer dies while messages are left, and its messages are reclaimed."""
    old: list[int] = []
    new: list[int] = []
    plain = redis.asyncio.Redis.from_url(redis_url)
    async with ShardedQueue(redis_url, "q", streams=16, streams_per_shard=2) as queue:
        await plain.xgroup_create("q", "q", "0", mkstream=True)

        async def produce_old() -> None:
            for n in range(300):
                await plain.xadd("q", {"n": n})

        async def produce(first: int) -> None:
            for n in range(first, first + 150):
                await queue.write({"n": n}, shard_key=f"k{n % 7}")

        async def consume_old() -> None:
            while True:
                for _, ((id, fields),) in await plain.xreadgroup("q", "old", {"q": ">"}, count=1):
                    if len(old) == 20:
                        return
                    old.append(int(fields[b"n"]))
                    await plain.xack("q", "q", id)

        async def consume(consumer: str) -> None:
            while True:
                message = await queue.read("g", consumer, block=SOON)
                new.append(int(message.values["n"]))
                await queue.ack("g", message.id)

        async with asyncio.timeout(SOON):
            consumers = [asyncio.create_task(consume(f"c{n}")) for n in range(3)]
            await asyncio.gather(consume_old(), produce_old(), produce(300), produce(450))
            await until(lambda: len(old) + len(new) == 599)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        (left,) = await queue.reclaim("g", "last", min_idle=0)
        assert await queue.ack("g", left.id) == 1
        assert (await queue.stats("g")).waiting == 0
    await plain.aclose()
    assert sorted([*old, *new, int(left.values["n"])]) == list(range(600))


async def test_an_old_producer_wakes_a_waiting_reader(queue, client) -> None:
    reading = asyncio.create_task(queue.read("g", "c", block=SOON))
    await until(lambda: client.info("clients")["blocked_clients"] == 1)
    began = time.monotonic()
    client.xadd("q", {"n": 1})
    assert (await reading).stream == "default"
    assert time.monotonic() - began < steps.WAIT_SECONDS


async def test_a_key_of_the_queues_name_that_is_no_stream_is_left_alone(queue, client) -> None:
    client.set("q", "somebody's")
    written = await queue.write({"n": 1})
    assert (await queue.read("g", "c")).id == written
    with pytest.raises(Empty):
        await queue.read("g", "c", block=0.05)
    assert (await queue.stats("g")).messages == 1
