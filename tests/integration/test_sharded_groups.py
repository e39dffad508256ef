"""Groups of readers, beside old producers and consumers of a plain stream."""

from __future__ import annotations

import asyncio
import time

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import (  # noqa: E402
    Empty,
    steps,
)
from tests.sharded_queues import SOON  # noqa: E402
from tests.waiting import until  # noqa: E402


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
    client.xack("q", "q", *(id for [[_, [(id, _)]]] in old))
    found = await queue.stats("g")
    assert (found.messages, found.pending, found.waiting) == (0, 0, 0), "they leave the entries"
    stream, id = (await queue.write({"n": 15})).split("/")
    client.xreadgroup("g", "old", {f"{{q}}:s{stream}": ">"})
    client.xack(f"{{q}}:s{stream}", "g", id)
    found = await queue.stats("g")
    assert (found.messages, found.pending, found.waiting) == (0, 0, 0)


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
