"""Faults of the published queue that this queue must not have."""

from __future__ import annotations

import random

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import (
    QueueDamaged,
    ShardedQueue,
    SyncShardedQueue,
)
from tests import tiers  # noqa: E402
from tests.sharded_queues import ago, drain, key_of, lives, pass_time  # noqa: E402


def test_shrinking_waits_for_every_stream_beyond_the_new_count(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=1, shrink_after=0) as queue:
        # the published queue does not check stream 8
        for stream in range(8, 16):
            lonely = queue.write({"n": stream}, shard_key=key_of(16, stream))
            assert lonely.startswith(f"{stream}/")
            below = queue.write({"n": 0}, streams=8)
            assert client.hget("{q}:meta", "streams") == b"16"
            claimed = {queue.read("g", "c").id for _ in range(2)}
            assert claimed == {lonely, below}
            queue.ack("g", below)
            queue.write({"n": 1}, streams=8)
            assert client.hget("{q}:meta", "streams") == b"16", (
                "the claimed message may have to be delivered again"
            )
            queue.ack("g", lonely)
            after = queue.write({"n": 2}, streams=8)
            assert client.hget("{q}:meta", "streams") == b"8"
            assert after in {message.id for message in drain(queue)}
            assert queue.len() == 0


def test_no_unread_message_expires_while_the_queue_lives(redis_url, client) -> None:
    chance = random.Random(seed := tiers.seed())
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
                assert lives(client, key, 990_000), f"seed {seed}: {key!r}"
        assert {int(message.values["n"]) for message in drain(queue)} >= set(range(8))


def test_writers_with_different_stream_counts_do_not_make_the_count_flap(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", shrink_after=1000.0) as queue:
        for _ in range(10):
            for streams in (16, 8):
                queue.write({"n": 1}, streams=streams, streams_per_shard=2)
                assert client.hget("{q}:meta", "streams") == b"16"
                drain(queue)
        pass_time(client, "q", 1_001_000)
        queue.write({"n": 1}, streams=8, streams_per_shard=2)
        assert client.hget("{q}:meta", "streams") == b"8"


def test_a_failed_read_returns_no_message_and_moves_no_offset(sync_queue, client) -> None:
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
    assert sync_queue.pending("g") == 1, "the failed read claimed no message"
    good = sync_queue.write({"n": 2})
    assert sync_queue.read("g", "c").id == good


async def test_names_and_values_may_hold_any_character_and_queues_stay_apart(
    redis_url, client
) -> None:
    awkward = ("a:b", "a/b", "meta", "later:1", "ü 1", "{", "")
    async with (
        ShardedQueue(redis_url, "q:s1", reads="tenants") as one,
        ShardedQueue(redis_url, "q", reads="tenants") as other,
    ):
        for queue in (one, other):
            for key in awkward:
                late = await queue.write(
                    {"a:b": key, "deadline": "1"}, shard_key=key, deadline=ago(hours=1)
                )
                good = await queue.write({"a:b": key, "deadline": "1"}, shard_key=key)
                assert [(each.id, each.shard_key) for each in await queue.cordon()] == [(late, key)]
                message = await queue.read(f"g:{key}", f"c/{key}")
                assert (message.id, message.shard_key, message.values["a:b"]) == (
                    good,
                    key,
                    key.encode(),
                )
                await queue.ack(f"g:{key}", good)
                assert await queue.drop_group(f"g:{key}") == 0
                assert await queue.len() == 0
        client.delete(*client.keys("{q}:*"))
        assert len(await one.cordoned()) == len(awkward)


async def test_the_shortest_stream_is_the_one_with_the_fewest_waiting_messages(queue) -> None:
    key = key_of(16, 3, 4)
    first = await queue.write({"n": 0}, shard_key=key)
    claimed = [(await queue.read("g", "c")).stream]
    for n in range(3):
        await queue.write({"n": n}, shard_key=key_of(16, int(claimed[0])), streams_per_shard=1)
        claimed.append((await queue.read("g", "c")).stream)
    assert claimed == [first.partition("/")[0]] * 4
    other = next(stream for stream in ("3", "4") if stream != claimed[0])
    await queue.write({"n": 4}, shard_key=key_of(16, int(other)), streams_per_shard=1)
    assert (await queue.write({"n": 5}, shard_key=key)).startswith(f"{claimed[0]}/"), (
        "four messages of this stream are claimed, and none waits"
    )
