"""Behaviour of the published queue, on a real Redis, asynchronous and synchronous."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import Empty, InvalidMessage, ShardedQueue, UnknownMessage, steps
from tests import tiers  # noqa: E402
from tests.sharded_queues import SOON, ago, drain, key_of, lives, until  # noqa: E402

DAY = 86_400.0
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


async def test_a_reader_waits_for_its_block_time_and_not_longer_than_for_a_message(queue) -> None:
    began = time.monotonic()
    with pytest.raises(Empty):
        await queue.read("g", "c", block=0.2)
    assert time.monotonic() - began >= 0.2


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


async def test_a_write_makes_the_keys_that_readers_need_and_no_message_expires(
    queue, client
) -> None:
    for n in range(20):
        await queue.write(
            {"n": n, "text": "ä", "raw": b"\xff\x00"}, shard_key="a", deadline=ago(hours=-1)
        )
    assert client.hget("{q}:meta", "streams") == b"16"
    assert client.xlen("{q}:notifications") == 20
    streams = sorted(key for key in client.keys("*") if key.startswith(b"{q}:s"))
    assert len(streams) == 2
    for stream in streams:
        entries = client.xrange(stream)
        assert len(entries) == 10, "each message goes to the shortest stream"
        numbers = [int(fields[b"n"]) for _, fields in entries]
        assert numbers == sorted(numbers)
        assert all(
            fields[b"text"] == "ä".encode() and fields[b"raw"] == b"\xff\x00"
            for _, fields in entries
        )
    await queue.read("g", "c")
    await queue.set_weight("a", 2)
    for key in client.keys("*"):
        assert lives(client, key, 23 / 24 * DAY * 1000), key
    for key in ("{q}:meta", "{q}:groups", "{q}:weights", *streams):
        assert client.pttl(key) == -1, key
    assert {key.partition(b"}")[0] for key in client.keys("*")} == {b"{q"}, (
        "all keys are in one slot of a cluster"
    )


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


async def test_details_name_groups_consumers_and_the_longest_streams(queue) -> None:
    found = await queue.details()
    assert (found.groups, found.consumers, found.streams, found.is_whole) == ([], [], [], True)
    for n in range(6):
        await queue.write({"n": n}, shard_key="a" if n < 5 else "b")
    await queue.read("g", "ann")
    await queue.read_many("g", "bo", count=2)
    await queue.read("h", "cy")
    found = await queue.details("g", count=2)
    assert (found.groups, found.group_count) == (["g", "h"], 2)
    assert [(each.name, each.messages) for each in found.consumers] == [("bo", 2), ("ann", 1)]
    assert all(each.last_read is not None for each in found.consumers)
    lengths = [each.messages for each in found.streams]
    assert lengths == sorted(lengths, reverse=True) and len(lengths) == 2
    for wrong in (0, 201):
        with pytest.raises(InvalidMessage):
            await queue.details("g", count=wrong)


async def test_cordon_collects_the_ten_of_fifteen_messages_past_their_deadline(queue) -> None:
    past = {await queue.write({"n": n}, deadline=ago(hours=3)) for n in range(10)}
    ahead = {await queue.write({"n": n}, deadline=ago(hours=-3)) for n in range(5)}
    assert {each.id for each in await queue.cordon()} == past
    assert await queue.len() == 5
    assert {(await queue.read("g", "c")).id for _ in range(5)} == ahead


@pytest.mark.parametrize("deadline", [datetime(2030, 1, 1), datetime(1969, 1, 1, tzinfo=UTC)])
async def test_a_deadline_that_is_no_instant_is_refused(queue, deadline) -> None:
    with pytest.raises(InvalidMessage, match="deadline"):
        await queue.write({"n": 1}, deadline=deadline)
    assert await queue.len() == 0


async def test_a_malformed_deadline_of_another_writer_is_ignored(queue, client) -> None:
    client.xadd("q", {"n": 1, "fairlead:deadline": "1" * 40})
    client.xadd("q", {"n": 2, "fairlead:deadline": "soon"})
    assert [(await queue.read("g", "c")).deadline for _ in range(2)] == [None, None]


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


async def test_cordon_handles_more_messages_than_one_pass_can(sync_queue, client) -> None:
    past = str(int(time.time() * 1000) - 1000)
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(2500):
            pipeline.xadd("q", {"n": 1, "fairlead:deadline": past})
        pipeline.execute()
    good = sync_queue.write({"n": 2})
    assert [message.id for message in drain(sync_queue)] == [good]
    assert sync_queue.stats("g").cordoned == 2500


async def test_readers_pick_up_messages_within_milliseconds(redis_url) -> None:
    """Four writers write ten times a second each, at random times, to four readers for three seconds."""
    seed = tiers.seed()
    chance = random.Random(seed)
    waits: list[float] = []
    async with ShardedQueue(redis_url, "q", streams=16, streams_per_shard=4) as queue:

        async def write(key: str) -> int:
            written, at = 0, asyncio.get_running_loop().time()
            end = at + 3.0
            while (at := at + chance.expovariate(10.0)) < end:
                await asyncio.sleep(at - asyncio.get_running_loop().time())
                await queue.write({"at": time.monotonic()}, shard_key=key)
                written += 1
            return written

        async def read(consumer: str) -> None:
            while True:
                message = await queue.read("g", consumer, block=SOON)
                waits.append(time.monotonic() - float(message.values["at"]))
                await queue.ack("g", message.id)

        readers = [asyncio.create_task(read(f"c{n}")) for n in range(4)]
        written = sum(await asyncio.gather(*(write(f"k{n}") for n in range(4))))
        await until(lambda: len(waits) >= written)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert await queue.len() == 0
    mean = sum(waits) / len(waits)
    print(
        f"seed {seed}: {written} messages, mean {mean * 1000:.1f} ms, worst {max(waits) * 1000:.1f} ms"
    )
    assert len(waits) == written
    assert mean < 0.25, (
        f"seed {seed}: readers that no write wakes look by themselves after two seconds"
    )
