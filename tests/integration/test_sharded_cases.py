"""Behaviour of the published queue, on a real Redis, asynchronous and synchronous."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import Empty, InvalidMessage, ShardedQueue, UnknownMessage, steps
from tests.sharded_queues import SOON, ago, key_of  # noqa: E402
from tests.waiting import until  # noqa: E402

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("deadline", [None, HOUR], ids=["plain", "with a deadline"])
async def test_a_message_is_read_once_and_counted_until_it_is_acknowledged(queue, deadline) -> None:
    due = None if deadline is None else datetime.now(UTC) + deadline
    written = [await queue.write({"n": n}, shard_key="a", deadline=due) for n in range(10)]
    written += [await queue.write({"n": n}, shard_key="b", deadline=due) for n in range(10, 15)]
    read = []
    for n in range(15):
        read.append(await queue.read("g", "c"))
        assert await queue.pending("g") == n + 1
        assert await queue.len() == 15
    with pytest.raises(Empty):
        await queue.read("g", "c")
    assert sorted(message.id for message in read) == sorted(written)
    assert sorted(int(message.values["n"]) for message in read) == list(range(15))
    assert Counter(message.shard_key for message in read) == {"a": 10, "b": 5}
    assert await queue.ack("g", *written) == 15
    assert await queue.ack("g", *written) == 0
    found = await queue.stats("g")
    assert (found.messages, found.pending, found.waiting) == (0, 0, 0)


async def test_a_waiting_reader_gets_the_next_message(queue, client) -> None:
    reading = asyncio.create_task(queue.read("g", "c", block=SOON))
    await until(lambda: client.info("clients")["blocked_clients"] == 1)
    began = time.monotonic()
    written = await queue.write({"a": "b"})
    assert (await reading).id == written
    assert time.monotonic() - began < steps.WAIT_SECONDS, "the write did not wake the reader"


@pytest.mark.parametrize("block", [0.0, 1.0])
async def test_reads_rotate_over_the_streams_and_drain_a_preferred_one_first(
    redis_url, block
) -> None:
    async with ShardedQueue(redis_url, "q", streams=4, streams_per_shard=1) as queue:

        async def fill() -> None:
            for n in range(10):
                for stream in range(4):
                    await queue.write({"n": n}, shard_key=key_of(4, stream))

        await fill()
        read = [await queue.read("g", "c", block=block) for _ in range(40)]
        assert [int(message.values["n"]) for message in read] == [
            n for n in range(10) for _ in range(4)
        ]
        assert [message.stream for message in read] == ["0", "1", "2", "3"] * 10

        await fill()
        stream: str | None = None
        order = []
        for _ in range(40):
            message = await queue.read("g", "c", block=block, prefer_stream=stream)
            stream = message.stream
            order.append((stream, int(message.values["n"])))
        assert order == [(str(stream), n) for stream in range(4) for n in range(10)]


async def test_a_message_is_deleted_once(queue) -> None:
    waiting, claimed = await queue.write({"n": 1}), await queue.write({"n": 2})
    await queue.read("g", "c")
    for id in (waiting, claimed):
        await queue.delete(id)
        with pytest.raises(UnknownMessage):
            await queue.delete(id)
    with pytest.raises(UnknownMessage):
        await queue.delete("3/1-1")
    for corrupt in (
        "",
        "3",
        "3/1",
        "1-1",
        "x/1-1",
        "-1/1-1",
        "3/1-1 ",
        "3/1-1/2",
        "03/1-1",
        "3}:x/1-1",
    ):
        with pytest.raises(InvalidMessage):
            await queue.delete(corrupt)
        with pytest.raises(InvalidMessage):
            await queue.ack("g", corrupt)
    found = await queue.stats("g")
    assert (found.messages, found.pending) == (0, 0)


@pytest.mark.parametrize("deadline", [datetime(2030, 1, 1), datetime(1969, 1, 1, tzinfo=UTC)])
async def test_a_deadline_that_is_no_instant_is_refused(queue, deadline) -> None:
    with pytest.raises(InvalidMessage, match="deadline"):
        await queue.write({"n": 1}, deadline=deadline)
    assert await queue.len() == 0


async def test_deadlines_of_messages_that_are_gone_are_dropped(queue, client) -> None:
    for way in ("ack", "delete", "read", "lost"):
        id = await queue.write({"n": 1}, deadline=ago(hours=1 if way in ("read", "lost") else -1))
        if way == "ack":
            await queue.ack("g", (await queue.read("g", "c")).id)
        elif way == "delete":
            await queue.delete(id)
        elif way == "read":
            with pytest.raises(Empty):
                await queue.read("g", "c")
        else:
            client.delete(f"{{q}}:s{id.partition('/')[0]}")
            assert await queue.cordon() == []
        assert client.zcard("{q}:deadlines") == 0, way


async def test_cordon_takes_messages_past_their_deadline_within_the_window(queue) -> None:
    assert await queue.cordon() == []
    ahead = await queue.write({"n": 0}, shard_key="ahead", deadline=ago(minutes=-30))
    assert await queue.cordon(window=3600) == []

    recent = {
        await queue.write({"n": n}, shard_key="a", deadline=ago(minutes=30)) for n in range(5)
    }
    older = {await queue.write({"n": n}, shard_key="b", deadline=ago(hours=2)) for n in range(4)}
    assert await queue.cordon(window=0) == []
    assert {each.id for each in await queue.cordon(window=3600)} == recent
    assert await queue.cordon(window=3600) == []
    assert {each.id for each in await queue.cordon(window=3 * 3600)} == older

    due = await queue.write({"n": 1}, deadline=datetime.now(UTC))
    assert [each.id for each in await queue.cordon(window=3600)] == [due]
    listed = await queue.cordoned()
    assert [each.id for each in listed] == [
        each.id for each in sorted(listed, key=lambda each: each.at)
    ]
    assert {each.id for each in listed} == recent | older | {due}
    assert {each.shard_key for each in listed} == {"a", "b", ""}
    assert all(each.deliveries == 0 and each.deadline is not None for each in listed)
    assert (await queue.read("g", "c")).id == ahead


async def test_a_message_past_its_deadline_is_not_delivered(queue) -> None:
    late = [await queue.write({"n": n}, shard_key="a", deadline=ago(days=3)) for n in range(30)]
    good = await queue.write({"n": 30}, shard_key="a")
    assert (await queue.read("g", "c")).id == good
    with pytest.raises(Empty):
        await queue.read("g", "c")
    assert {each.id for each in await queue.cordoned()} == set(late)
