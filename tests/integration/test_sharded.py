"""The sharded queue on a real Redis: the cases of the published one by their ids, asynchronous and synchronous."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead.errors import ConfigurationError, StoreUnavailable
from services.redis import RedisServer

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import (  # noqa: E402
    Empty,
    InvalidMessage,
    QueueDamaged,
    ShardedQueue,
    SyncShardedQueue,
    UnknownMessage,
    steps,
)
from tests.sharded_queues import SOON, Awaited, drain, key_of, pass_time, until  # noqa: E402

pytestmark = pytest.mark.redis

DAY = 86_400.0
HOUR = timedelta(hours=1)


@pytest.fixture
def sync_queue(redis_url: str) -> Any:
    with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=2) as found:
        yield found


@pytest.fixture(params=["asynchronous", "synchronous"])
async def queue(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Any]:
    """Each of the two; 16 streams, 2 a shard."""
    if request.param == "synchronous":
        with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=2) as found:
            yield Awaited(found)
    else:
        async with ShardedQueue(redis_url, "q", streams=16, streams_per_shard=2) as found:
            yield found


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


# the cases of the published queue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [None, HOUR], ids=["plain", "with a deadline"])
async def test_s01_what_was_written_is_read_once_and_counted_until_it_is_acknowledged(queue, deadline) -> None:
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


async def test_s02_a_reader_that_waits_gets_what_is_written_then(queue, client) -> None:
    reading = asyncio.create_task(queue.read("g", "c", block=SOON))
    await until(lambda: client.info("clients")["blocked_clients"] == 1)
    began = time.monotonic()
    written = await queue.write({"a": "b"})
    assert (await reading).id == written
    assert time.monotonic() - began < steps.WAIT_SECONDS, "it was not woken, but looked by itself"


async def test_s02_a_reader_waits_as_long_as_it_said_and_no_longer_than_it_must(queue) -> None:
    began = time.monotonic()
    with pytest.raises(Empty):
        await queue.read("g", "c", block=0.2)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("block", [0.0, 1.0])
async def test_s03_streams_take_turns_and_a_preferred_one_is_drained_first(redis_url, block) -> None:
    async with ShardedQueue(redis_url, "q", streams=4, streams_per_shard=1) as queue:

        async def fill() -> None:
            for n in range(10):
                for stream in range(4):
                    await queue.write({"n": n}, shard_key=key_of(4, stream))

        await fill()
        read = [await queue.read("g", "c", block=block) for _ in range(40)]
        assert [int(message.values["n"]) for message in read] == [n for n in range(10) for _ in range(4)]
        assert [message.stream for message in read] == ["0", "1", "2", "3"] * 10

        await fill()
        stream: str | None = None
        order = []
        for _ in range(40):
            message = await queue.read("g", "c", block=block, prefer_stream=stream)
            stream = message.stream
            order.append((stream, int(message.values["n"])))
        assert order == [(str(stream), n) for stream in range(4) for n in range(10)]


async def test_s04_a_write_leaves_what_readers_need_and_every_key_has_an_end(queue, client) -> None:
    for n in range(20):
        await queue.write({"n": n, "text": "ä", "raw": b"\xff\x00"}, shard_key="a", deadline=ago(hours=-1))
    assert client.hget("{q}:meta", "streams") == b"16"
    assert client.xlen("{q}:notifications") == 20
    streams = sorted(key for key in client.keys("*") if key.startswith(b"{q}:s"))
    assert len(streams) == 2
    for stream in streams:
        entries = client.xrange(stream)
        assert len(entries) == 10, "they went to the shortest each time"
        numbers = [int(fields[b"n"]) for _, fields in entries]
        assert numbers == sorted(numbers)
        assert all(fields[b"text"] == "ä".encode() and fields[b"raw"] == b"\xff\x00" for _, fields in entries)
    await queue.read("g", "c")
    await queue.set_weight("a", 2)
    for key in client.keys("*"):
        assert client.pttl(key) > 23 / 24 * DAY * 1000, key
    assert {key.partition(b"}")[0] for key in client.keys("*")} == {b"{q"}, "all in one slot of a cluster"


async def test_s05_a_message_is_deleted_once(queue) -> None:
    waiting, claimed = await queue.write({"n": 1}), await queue.write({"n": 2})
    await queue.read("g", "c")
    for id in (waiting, claimed):
        await queue.delete(id)
        with pytest.raises(UnknownMessage):
            await queue.delete(id)
    with pytest.raises(UnknownMessage):
        await queue.delete("3/1-1")
    for corrupt in ("", "3", "3/1", "1-1", "x/1-1", "-1/1-1", "3/1-1 ", "3/1-1/2", "03/1-1", "3}:x/1-1"):
        with pytest.raises(InvalidMessage):
            await queue.delete(corrupt)
        with pytest.raises(InvalidMessage):
            await queue.ack("g", corrupt)
    found = await queue.stats("g")
    assert (found.messages, found.pending) == (0, 0)


async def test_s06_of_fifteen_with_a_deadline_the_ten_that_are_past_it_are_collected(queue) -> None:
    past = {await queue.write({"n": n}, deadline=ago(hours=3)) for n in range(10)}
    ahead = {await queue.write({"n": n}, deadline=ago(hours=-3)) for n in range(5)}
    assert {each.id for each in await queue.cordon()} == past
    assert await queue.len() == 5
    assert {(await queue.read("g", "c")).id for _ in range(5)} == ahead


@pytest.mark.parametrize("deadline", [datetime(2030, 1, 1), datetime(1969, 1, 1, tzinfo=UTC)])
async def test_s06_a_deadline_that_is_no_instant_is_refused(queue, deadline) -> None:
    with pytest.raises(InvalidMessage, match="deadline"):
        await queue.write({"n": 1}, deadline=deadline)
    assert await queue.len() == 0


async def test_s06_a_deadline_that_others_wrote_in_seconds_or_worse_is_none(queue, client) -> None:
    client.xadd("q", {"n": 1, "fairlead:deadline": "1" * 40})
    client.xadd("q", {"n": 2, "fairlead:deadline": "soon"})
    assert [(await queue.read("g", "c")).deadline for _ in range(2)] == [None, None]


async def test_s06_deadlines_of_messages_that_are_gone_are_forgotten(queue, client) -> None:
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


async def test_s07_cordon_takes_what_is_past_its_deadline_within_the_window(queue) -> None:
    assert await queue.cordon() == []
    ahead = await queue.write({"n": 0}, shard_key="ahead", deadline=ago(minutes=-30))
    assert await queue.cordon(window=3600) == []

    recent = {await queue.write({"n": n}, shard_key="a", deadline=ago(minutes=30)) for n in range(5)}
    older = {await queue.write({"n": n}, shard_key="b", deadline=ago(hours=2)) for n in range(4)}
    assert await queue.cordon(window=0) == []
    assert {each.id for each in await queue.cordon(window=3600)} == recent
    assert await queue.cordon(window=3600) == []
    assert {each.id for each in await queue.cordon(window=3 * 3600)} == older

    due = await queue.write({"n": 1}, deadline=datetime.now(UTC))
    assert [each.id for each in await queue.cordon(window=3600)] == [due]
    listed = await queue.cordoned()
    assert [each.id for each in listed] == [each.id for each in sorted(listed, key=lambda each: each.at)]
    assert {each.id for each in listed} == recent | older | {due}
    assert {each.shard_key for each in listed} == {"a", "b", ""}
    assert all(each.deliveries == 0 and each.deadline is not None for each in listed)
    assert (await queue.read("g", "c")).id == ahead


async def test_s07_what_is_past_its_deadline_is_not_delivered(queue) -> None:
    late = [await queue.write({"n": n}, shard_key="a", deadline=ago(days=3)) for n in range(30)]
    good = await queue.write({"n": 30}, shard_key="a")
    assert (await queue.read("g", "c")).id == good
    with pytest.raises(Empty):
        await queue.read("g", "c")
    assert {each.id for each in await queue.cordoned()} == set(late)


async def test_s07_more_than_one_pass_can_cordon_is_cordoned_all_the_same(sync_queue, client) -> None:
    past = str(int(time.time() * 1000) - 1000)
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(2500):
            pipeline.xadd("q", {"n": 1, "fairlead:deadline": past})
        pipeline.execute()
    good = sync_queue.write({"n": 2})
    assert [message.id for message in drain(sync_queue)] == [good]
    assert sync_queue.stats("g").cordoned == 2500


async def test_s08_readers_pick_up_as_soon_as_is_written(redis_url) -> None:
    """Four writers, each ten times a second at random, and four readers, for three seconds."""
    seed = random.randrange(2**32)
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
    print(f"seed {seed}: {written} messages, mean {mean * 1000:.1f} ms, worst {max(waits) * 1000:.1f} ms")
    assert len(waits) == written
    assert mean < 0.25, f"seed {seed}: readers that are not woken look by themselves after two seconds"


def test_s10_b7a_shrinking_waits_for_every_stream_beyond_the_new_count(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=1, shrink_after=0) as queue:
        for stream in range(8, 16):  # the first of them was never looked at by the published queue
            lonely = queue.write({"n": stream}, shard_key=key_of(16, stream))
            assert lonely.startswith(f"{stream}/")
            below = queue.write({"n": 0}, streams=8)
            assert client.hget("{q}:meta", "streams") == b"16"
            claimed = {queue.read("g", "c").id for _ in range(2)}
            assert claimed == {lonely, below}
            queue.ack("g", below)
            queue.write({"n": 1}, streams=8)
            assert client.hget("{q}:meta", "streams") == b"16", "it is claimed, and may have to be delivered again"
            queue.ack("g", lonely)
            after = queue.write({"n": 2}, streams=8)
            assert client.hget("{q}:meta", "streams") == b"8"
            assert after in {message.id for message in drain(queue)}
            assert queue.len() == 0


def test_s10_a_queue_that_shrinks_under_load_loses_nothing(redis_url) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=2, shrink_after=0) as queue:
        written, read = set(), []
        for n in range(400):
            streams = chance.choice((16, 16, 8)) if n < 200 else 8
            written.add(queue.write({"n": n}, shard_key=f"k{n % 20}", streams=streams))
            if chance.random() < 0.8:
                message = queue.read("g", "c")
                read.append(message.id)
                queue.ack("g", message.id)
        read += [message.id for message in drain(queue)]
        assert sorted(read) == sorted(written), f"seed {seed}"
        queue.write({"n": 0}, streams=8)
        assert queue.stats("g").streams == 8


# what the published queue gets wrong ----------------------------------------------------------------------------------


def test_b7b_no_unread_message_expires_while_the_queue_lives(redis_url, client) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=1, ttl=1000.0) as queue:
        for stream in range(8):
            queue.write({"n": stream}, shard_key=key_of(16, stream), deadline=ago(hours=-9))
        for _ in range(40):
            pass_time(client, "q", chance.choice((1_000, 60_000, 124_000, 126_000, 990_000)))
            if chance.random() < 0.5:
                queue.write({"n": 9}, shard_key=key_of(16, 15))
            else:
                queue.write({"n": 9}, shard_key=key_of(16, 15))
                pass_time(client, "q", chance.choice((1_000, 126_000)))
                queue.read("g", "c", prefer_stream=15)
            for key in client.keys("{q}:*"):
                assert client.pttl(key) > 990_000, f"seed {seed}: {key!r}"
        assert {int(message.values["n"]) for message in drain(queue)} >= set(range(8))


def test_b7b_readers_alone_keep_it_alive_too_also_when_they_find_nothing(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", streams=4, streams_per_shard=1, ttl=1000.0) as queue:
        queue.write({"n": 1})
        queue.read("g", "c")
        for _ in range(5):
            pass_time(client, "q", 900_000)
            with pytest.raises(Empty):
                queue.read("g", "c")
        assert queue.len() == 1
        pass_time(client, "q", 1_200_000)
        assert queue.len() == 0, "nobody came for longer than ttl"


def test_b7b_the_longest_life_that_anybody_asked_for_holds(redis_url, client) -> None:
    with (
        SyncShardedQueue(redis_url, "q", ttl=DAY) as patient,
        SyncShardedQueue(redis_url, "q", ttl=10.0) as hasty,
    ):
        patient.write({"n": 1}, shard_key="a")
        hasty.write({"n": 2}, shard_key="b")
        hasty.read("g", "c")
        assert all(client.pttl(key) > 23 / 24 * DAY * 1000 for key in client.keys("*"))


def test_b7c_writers_that_want_different_counts_do_not_make_it_flap(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", shrink_after=1000.0) as queue:
        for _ in range(10):
            for streams in (16, 8):
                queue.write({"n": 1}, streams=streams, streams_per_shard=2)
                assert client.hget("{q}:meta", "streams") == b"16"
                drain(queue)
        pass_time(client, "q", 1_001_000)
        queue.write({"n": 1}, streams=8, streams_per_shard=2)
        assert client.hget("{q}:meta", "streams") == b"8"


def test_b7d_an_error_is_no_message_and_moves_no_offset(sync_queue, client) -> None:
    sync_queue.write({"n": 1}, shard_key=key_of(16, 0, 1))
    sync_queue.read("g", "c")
    before = client.hget("{q}:meta", "offset:g")
    client.set("{q}:s5", "something else")
    for _ in range(3):
        with pytest.raises(QueueDamaged, match=r"\{q\}:s5"):
            sync_queue.read("g", "c")
        with pytest.raises(QueueDamaged, match=r"\{q\}:s5"):
            sync_queue.reclaim("g", "c", min_idle=0)
    assert client.hget("{q}:meta", "offset:g") == before
    client.delete("{q}:s5")
    assert sync_queue.pending("g") == 1, "nothing was claimed on the way to the error"
    good = sync_queue.write({"n": 2})
    assert sync_queue.read("g", "c").id == good


async def test_b7f_a_reader_that_prefers_a_stream_hears_of_the_others_too(queue, client) -> None:
    reading = asyncio.create_task(queue.read("g", "c", block=SOON, prefer_stream=3))
    await until(lambda: client.info("clients")["blocked_clients"] == 1)
    began = time.monotonic()
    written = await queue.write({"n": 1}, shard_key=key_of(16, 7, 8))
    assert (await reading).id == written
    assert time.monotonic() - began < steps.WAIT_SECONDS


async def test_b7f_a_preferred_stream_needs_no_group_and_leaves_the_turns_alone(queue, client) -> None:
    written = {await queue.write({"n": n}, shard_key=key_of(16, 3, 4)) for n in range(4)}
    preferred = await queue.read("new", "c", prefer_stream=4)
    assert preferred.stream == "4"
    assert client.hget("{q}:meta", "offset:new") is None
    rest = {(await queue.read("new", "c", prefer_stream=4)).id for _ in range(3)}
    assert rest | {preferred.id} == written
    for wrong in ("x", -1, "s3", "3/1-1", ""):
        with pytest.raises((InvalidMessage, Empty)):
            await queue.read("new", "c", prefer_stream=wrong)


async def test_b7g_cordoning_in_parts_loses_none_and_leaves_none(queue) -> None:
    written = {await queue.write({"n": n}, deadline=ago(days=n)) for n in range(1, 8)}
    claimed = await queue.write({"n": 0}, shard_key="other", deadline=ago(seconds=-0.3))
    assert (await queue.read("g", "c")).id == claimed  # and cordons those that it meets
    found = {each.id for each in await queue.cordoned()}
    while part := await queue.cordon(count=2):
        found |= {each.id for each in part}
    assert found == written
    assert {each.id for each in await queue.cordoned()} == written


# groups, old producers, and what a user may do wrong ------------------------------------------------------------------


async def test_each_group_gets_every_message_and_the_last_to_acknowledge_frees_it(queue) -> None:
    for group in ("one", "two"):
        with pytest.raises(Empty):
            await queue.read(group, "c")
    written = {await queue.write({"n": n}, shard_key=f"k{n}") for n in range(6)}
    first = [(await queue.read("one", "c")).id for _ in range(6)]
    assert await queue.ack("one", *first) == 6
    assert await queue.len() == 6, "the other group has not met them yet, in any stream"
    second = [(await queue.read("two", "c")).id for _ in range(6)]
    assert set(first) == set(second) == written
    for left in range(5, -1, -1):
        assert await queue.ack("two", second[left]) == 1
        assert await queue.len() == left


async def test_nothing_is_kept_for_a_group_that_is_forgotten(queue) -> None:
    for group in ("one", "two"):
        with pytest.raises(Empty):
            await queue.read(group, "c")
    written = [await queue.write({"n": n}, shard_key=f"k{n}") for n in range(6)]
    done = [(await queue.read("one", "c")).id for _ in range(4)]
    await queue.read("two", "c")
    await queue.ack("one", *done)
    assert await queue.len() == 6
    assert await queue.forget_group("two") == 4
    assert await queue.len() == 2
    rest = [(await queue.read("one", "c")).id for _ in range(2)]
    assert sorted([*done, *rest]) == sorted(written)
    await queue.ack("one", *rest)
    assert await queue.len() == 0
    last = await queue.write({"n": 6})
    assert await queue.forget_group("one") == 0
    assert (await queue.read("three", "c")).id == last, "what waits goes on waiting"


async def test_old_producers_and_consumers_of_the_plain_stream_go_on_beside_new_ones(queue, client) -> None:
    """Producers that XADD to the stream named like the queue, consumers in the group of that name; each message is for one."""
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
    assert await queue.len() == 3, "what the old consumers hold is theirs"
    assert client.pttl("q") == -1, "and their stream has no end"


async def test_an_old_producer_wakes_a_reader_that_waits(queue, client) -> None:
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


async def test_bad_writes_are_refused_before_anything_is_written(queue, client) -> None:
    bad: list[dict[str, Any]] = [
        {"values": {}},
        {"values": {"fairlead:key": "x"}},
        {"values": {str(n): n for n in range(1001)}},
        {"values": {"a": 1}, "weight": 0},
        {"values": {"a": 1}, "weight": float("nan")},
        {"values": {"a": 1}, "streams": 0},
        {"values": {"a": 1}, "streams": 4, "streams_per_shard": 5},
        {"values": {"a": 1}, "streams_per_shard": 0},
    ]
    for arguments in bad:
        with pytest.raises(InvalidMessage):
            await queue.write(**arguments)
    with pytest.raises(InvalidMessage):
        await queue.set_weight("a", -1)
    with pytest.raises(ConfigurationError):
        await queue.read("", "c")
    assert client.dbsize() == 0
    await queue.write({str(n): n for n in range(1000)})
    assert len((await queue.read("g", "c")).values) == 1000


@pytest.mark.parametrize("kind", [ShardedQueue, SyncShardedQueue])
def test_bad_settings_are_refused(kind, redis_url) -> None:
    with pytest.raises(ConfigurationError) as told:
        kind("redys://user:secret@host/0", "q")
    assert "secret" not in str(told.value)
    for wrong in ({"reads": "turns"}, {"ttl": 0}, {"shrink_after": -1}, {"max_deliveries": 0}, {"streams": 4}):
        with pytest.raises(ConfigurationError):
            kind(redis_url, "q", **wrong)
    for name in ("", "a{b}"):
        with pytest.raises(ConfigurationError):
            kind(redis_url, name)


async def test_a_wrong_password_is_told_without_it(redis_server: RedisServer) -> None:
    place = redis_server.url.rpartition("@")[2]
    async with ShardedQueue(f"redis://:wrong@{place}", "q") as queue:
        with pytest.raises(ConfigurationError) as told:
            await queue.len()
    assert "wrong" not in str(told.value)
    with SyncShardedQueue(redis.Redis(port=1, retry=None), "q") as away:
        with pytest.raises(StoreUnavailable):
            away.len()
    with pytest.raises(ConfigurationError):
        SyncShardedQueue(redis.Redis(decode_responses=True), "q")


async def test_a_cancellation_that_the_client_forgets_ends_the_read_all_the_same(redis_url, client) -> None:
    class Forgetful(redis.asyncio.Redis):
        async def xread(self, *arguments: Any, **more: Any) -> Any:
            try:
                return await super().xread(*arguments, **more)
            except asyncio.CancelledError:
                return {}

    forgetful = Forgetful.from_url(redis_url)
    reading = asyncio.create_task(ShardedQueue(forgetful, "q").read("g", "c", block=3600.0))
    await until(lambda: client.info("clients")["blocked_clients"] == 1)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=SOON)
    assert done and reading.cancelled()
    await forgetful.aclose()


def test_the_twin_has_the_same_surface() -> None:
    def surface(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [(each.name, each.default, each.kind) for each in inspect.signature(function).parameters.values()]
            for name, function in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    assert surface(ShardedQueue) == surface(SyncShardedQueue)


async def test_of_fifty_that_wait_one_message_makes_two_look_through_the_streams(
    redis_url, client, monkeypatch
) -> None:
    monkeypatch.setattr(steps, "WAIT_SECONDS", 3600.0)  # nobody looks by himself
    patient = redis.asyncio.Redis.from_url(redis_url, socket_timeout=None, max_connections=100)
    queue = ShardedQueue(patient, "q", streams=16, streams_per_shard=2)

    def waiting() -> int:
        return int(client.info("clients")["blocked_clients"])

    def calls(command: str) -> int:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])

    async with AsyncExitStack() as stack:
        stack.push_async_callback(patient.aclose)
        readers = [asyncio.create_task(queue.read("g", f"c{n}", block=3600.0)) for n in range(50)]
        await until(lambda: waiting() == 50)
        for left in range(49, 44, -1):
            before = calls("xlen")
            await queue.write({"n": left}, shard_key=key_of(16, 14, 15))
            await until(lambda: waiting() == left and sum(reader.done() for reader in readers) == 50 - left)
            looked_into = calls("xlen") - before
            # The writer looks into the two of its shard; one pass finds the message, one finds nothing.
            assert looked_into <= 2 + 16 + 16, f"{looked_into / 16:.1f} passes"
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert await queue.pending("g") == 5
