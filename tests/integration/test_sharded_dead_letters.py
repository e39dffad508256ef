"""The dead letters of a sharded queue: pages by an index, requeue and delete; messages that a consumer
gives back; heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from redis import Redis  # noqa: E402

from fairlead.errors import ConfigurationError  # noqa: E402
from fairlead.sharded import (  # noqa: E402
    Empty,
    NewMessage,
    QueueDamaged,
    ShardedQueue,
    SyncShardedQueue,
    UnknownMessage,
)
from tests import sharded_queues  # noqa: E402
from tests.sharded_queues import ago, drain, key_of, pass_time  # noqa: E402
from tests.waiting import until  # noqa: E402

KEYS = ("{q}:dead", "{q}:dead:heads", "{q}:dead:names")


def bury(queue: SyncShardedQueue, *messages: NewMessage) -> list[str]:
    """Write messages and make them dead letters; return their ids."""
    ids = queue.write_many(messages)
    left = len(ids)
    while left:
        held = queue.read_many("g", "c", count=left)
        left -= len(held)
        sharded_queues.bury(queue, "g", "c", *(each.id for each in held))
    return ids


def sizes(client: Redis) -> tuple[int, int, int]:
    """Return the numbers of dead letters, heads and names."""
    letters, heads, names = KEYS
    return client.xlen(letters), client.xlen(heads), client.zcard(names)


@pytest.fixture
def queue(redis_url: str) -> Any:
    with SyncShardedQueue(redis_url, "q", streams=8, streams_per_shard=2, max_deliveries=2) as made:
        yield made


# pages --------------------------------------------------------------------------------------------


def test_heads_list_every_dead_letter_once_without_its_large_fields(queue, client) -> None:
    large = b"x" * 5000
    ids = bury(queue, *[NewMessage({"n": n, "body": large}, f"k{n % 5}") for n in range(650)])
    found, after = [], ""
    while page := queue.dead_letter_heads(count=250, after=after):
        found += page
        after = page[-1].position
    assert [len(found), {head.id for head in found}] == [650, set(ids)]
    assert all(set(head.values) == {"n"} and head.size > 5000 for head in found)
    assert {head.shard_key for head in found} == {f"k{n}" for n in range(5)}
    letter = queue.dead_letter(found[321].id)
    assert letter.values == {**found[321].values, "body": large}
    assert (letter.deliveries, letter.position) == (1, found[321].position)


def test_no_command_on_dead_letters_returns_more_than_about_a_megabyte(queue, client) -> None:
    bury(queue, *[NewMessage({"body": b"x" * 100_000}) for _ in range(60)])
    client.config_set("client-output-buffer-limit", "normal 4000000 0 0")
    try:
        letters = queue.dead_letter_heads()
        assert queue.requeue_dead_letters(*(letter.id for letter in letters)) == [
            letter.id for letter in letters
        ]
    finally:
        client.config_set("client-output-buffer-limit", "normal 0 0 0")
    assert (len(letters), queue.len(), sizes(client)) == (60, 60, (0, 0, 0))


# requeue and delete -------------------------------------------------------------------------------


def test_a_dead_letter_is_requeued_with_all_its_fields_and_no_deliveries(queue, client) -> None:
    due = ago(hours=-1).replace(microsecond=0)
    made = NewMessage({"n": b"\xff", "body": b"x" * 5000}, "acme", due, 2.0, None, {"a": "b"})
    written = queue.write_many([made])[0]
    queue.read("g", "c")
    queue.reclaim("g", "d", min_idle=0)
    assert queue.reclaim("g", "e", min_idle=0) == []
    assert queue.requeue_dead_letters(written, "0/1-1") == [written]
    assert sizes(client) == (0, 0, 0)
    message = queue.read("g", "c")
    assert message.id != written
    assert (message.values, message.shard_key, message.deadline, message.context) == (
        {"n": b"\xff", "body": b"x" * 5000},
        "acme",
        due,
        {"a": "b"},
    )
    assert message.deliveries == 1
    assert queue.requeue_dead_letters(written) == []


def test_deleted_dead_letters_leave_nothing(queue, client) -> None:
    ids = bury(queue, *[NewMessage({"n": n}) for n in range(450)])
    assert queue.delete_dead_letters(*ids[:400], "0/1-1") == ids[:400]
    assert sizes(client) == (50, 50, 50)
    with pytest.raises(UnknownMessage, match=ids[0]):
        queue.dead_letter(ids[0])
    assert queue.delete_dead_letters(*ids) == ids[400:]
    assert sizes(client) == (0, 0, 0)


def test_letters_of_one_message_in_two_groups_are_found_one_after_the_other(queue, client) -> None:
    with pytest.raises(Empty):
        queue.read("other", "c")
    id = queue.write({"n": 1})
    for group in ("g", "other"):
        assert queue.read(group, "c").id == id
        sharded_queues.bury(queue, group, "c", id)
    assert sizes(client) == (2, 2, 2)
    assert queue.delete_dead_letters(id) == [id]
    assert sizes(client) == (1, 1, 1)
    assert queue.requeue_dead_letters(id) == [id]
    assert sizes(client) == (0, 0, 0)


def test_a_letter_stays_whole_if_its_stream_is_damaged(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", streams=2, streams_per_shard=1) as queue:
        (id,) = bury(queue, NewMessage({"n": 1}, key_of(2, 1)))
        kept = client.dump("{q}:s1")
        client.set("{q}:s1", "foreign")
        with pytest.raises(QueueDamaged):
            queue.requeue_dead_letters(id)
        assert sizes(client) == (1, 1, 1)
        client.restore("{q}:s1", 0, kept, replace=True)
        assert queue.requeue_dead_letters(id) == [id]
        assert (queue.len(), sizes(client)) == (1, (0, 0, 0))


# time to live -------------------------------------------------------------------------------------


def test_old_letters_leave_with_their_heads_and_names_a_few_at_a_time(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", ttl=1000.0) as queue:
        bury(queue, *[NewMessage({"n": n}) for n in range(350)])
        for n in range(10):
            pass_time(client, "q", 126_000)
            bury(queue, NewMessage({"n": n}))
        assert sizes(client) == (360, 360, 360), "kept for ttl"
        pass_time(client, "q", 126_000)
        seen = [360]
        while len(set(seen[-3:])) > 1 or len(seen) < 3:
            queue.write({"n": 1})
            seen.append(client.xlen("{q}:dead"))
        assert max(before - after for before, after in zip(seen, seen[1:], strict=False)) == 100
        left = seen[-1]
        assert sizes(client) == (left, left, left)
        assert 8 <= left <= 11


def test_the_keys_of_dead_letters_rest_with_the_queue_and_stay_while_it_has_letters(
    redis_url, client
) -> None:
    with SyncShardedQueue(redis_url, "q", ttl=1000.0) as queue:
        ids = bury(queue, *[NewMessage({"n": n}) for n in range(3)])
        with pytest.raises(Empty):
            queue.read("g", "c")
        assert [client.pttl(key) for key in KEYS] == [-1] * 3
        queue.delete_dead_letters(*ids[1:])
        queue.requeue_dead_letters(ids[0])
        drain(queue)
        assert all(client.pttl(key) > 0 for key in KEYS if client.exists(key))
        assert client.hget("{q}:meta", "rests") == b"1"
        bury(queue, NewMessage({"n": 4}))
        assert [client.pttl(key) for key in KEYS] == [-1] * 3


# messages given back ------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", ["streams", "tenants"])
def test_a_message_given_back_is_read_again_before_others_with_its_deliveries(
    redis_url, client, reads
) -> None:
    with SyncShardedQueue(redis_url, "q", streams=4, streams_per_shard=2, reads=reads) as queue:
        queue.write_many([NewMessage({"n": n}, f"k{n % 3}") for n in range(10)])
        first, second = queue.read_many("g", "c", count=2)
        assert queue.nack("g", "c", first.id, second.id, "0/1-1") == [first.id, second.id]
        assert queue.nack("g", "c", first.id) == [], "given back already"
        assert queue.extend("g", "c", first.id) == []
        found = queue.read_many("g", "d", count=5)
        assert {message.id for message in found[:2]} == {first.id, second.id}
        assert [message.deliveries for message in found] == [2, 2, 1, 1, 1]
        assert queue.ack("g", *(message.id for message in found)) == 5
        assert len(drain(queue)) == 5
        assert (queue.len(), client.exists("{q}:returned:g")) == (0, 0)


async def test_a_message_given_back_wakes_a_reader_and_one_with_a_delay_when_it_is_due(
    redis_url, client
) -> None:
    async with ShardedQueue(redis_url, "q") as queue:
        await queue.write({"n": 1})
        message = await queue.read("g", "c")
        for delay in (0.0, 0.05):
            assert await queue.nack("g", "c", message.id, delay=delay) == [message.id]
            again = await queue.read("g", "c", block=30.0)
            assert again.id == message.id
        assert again.deliveries == 3


def test_a_message_given_back_for_later_is_neither_read_nor_reclaimed(queue, client) -> None:
    queue.write({"n": 1})
    message = queue.read("g", "c")
    queue.nack("g", "c", message.id, delay=3600.0)
    with pytest.raises(Empty):
        queue.read("g", "c")
    assert queue.reclaim("g", "d", min_idle=0) == []
    client.zadd("{q}:returned:g", dict.fromkeys(client.zrange("{q}:returned:g", 0, -1), 1))
    assert queue.read("g", "d").id == message.id


def test_a_message_given_back_is_reclaimed_if_the_list_of_these_is_lost(queue, client) -> None:
    queue.write({"n": 1})
    message = queue.read("g", "c")
    queue.nack("g", "c", message.id, delay=3600.0)
    client.delete("{q}:returned:g")
    assert [found.id for found in queue.reclaim("g", "d", min_idle=0)] == [message.id]


@pytest.mark.parametrize("end", ["ack", "delete", "reclaim"])
def test_a_message_that_has_ended_after_it_was_given_back_is_not_read(queue, client, end) -> None:
    queue.write({"n": 1})
    message = queue.read("g", "c")
    queue.nack("g", "c", message.id)
    if end == "ack":
        assert queue.ack("g", message.id) == 1
    elif end == "delete":
        queue.delete(message.id)
    else:
        assert len(queue.reclaim("g", "d", min_idle=0)) == 1
    with pytest.raises(Empty):
        queue.read("g", "e")
    assert client.exists("{q}:returned:g") == 0


def test_a_message_given_back_too_often_becomes_a_dead_letter(queue) -> None:
    queue.write({"n": 1})
    for deliveries in (1, 2):
        message = queue.read("g", "c")
        assert message.deliveries == deliveries
        assert queue.nack("g", "c", message.id) == [message.id]
    with pytest.raises(Empty):
        queue.read("g", "c")
    (letter,) = queue.dead_letter_heads()
    assert (letter.id, letter.deliveries) == (message.id, 2)


def test_a_message_given_back_to_one_group_does_not_come_to_another(queue) -> None:
    with pytest.raises(Empty):
        queue.read("other", "c")
    queue.write({"n": 1})
    message = queue.read("g", "c")
    assert len(drain(queue, "other")) == 1
    queue.nack("g", "c", message.id)
    assert drain(queue, "other") == []
    assert [found.id for found in drain(queue)] == [message.id]
    assert queue.len() == 0


# heartbeats ---------------------------------------------------------------------------------------

LONG = 3_600_000  # milliseconds


def make_idle(client: Redis, id: str) -> None:
    """Let a claim look as if its consumer had been silent for long."""
    stream, _, at = id.partition("/")
    client.xclaim(f"{{q}}:s{stream}", "g", "c", 0, [at], idle=LONG, justid=True)


def is_idle(client: Redis, id: str) -> bool:
    stream, _, at = id.partition("/")
    (found,) = client.xpending_range(f"{{q}}:s{stream}", "g", at, at, 1)
    return bool(found["time_since_delivered"] >= LONG)


async def test_a_heartbeat_extends_a_claim_again_and_again_and_notes_its_loss(
    redis_url, client
) -> None:
    async with ShardedQueue(redis_url, "q") as queue:
        kept, lost = [await queue.write({"n": n}) for n in range(2)]
        for _ in range(2):
            await queue.read("g", "c")
        async with queue.heartbeat("g", "c", kept, lost, every=0.01) as heartbeat:
            for _ in range(3):
                make_idle(client, kept)
                await until(lambda: not is_idle(client, kept))
            assert await queue.reclaim("g", "d", min_idle=LONG / 2000) == []
            assert heartbeat.lost == set()
            stream, _, at = lost.partition("/")
            client.xclaim(f"{{q}}:s{stream}", "g", "d", 0, [at], justid=True)
            await until(lambda: heartbeat.lost == {lost})
        assert await queue.ack("g", kept) == 1


async def test_a_heartbeat_in_a_thread_does_the_same(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q") as queue:
        id = queue.write({"n": 1})
        queue.read("g", "c")
        with queue.heartbeat("g", "c", id, every=0.01) as heartbeat:
            for _ in range(3):
                make_idle(client, id)
                await until(lambda: not is_idle(client, id))
            queue.ack("g", id)
            await until(lambda: heartbeat.lost == {id})


def test_an_error_of_a_heartbeat_is_raised_at_the_end_of_its_block(queue) -> None:
    with pytest.raises(ConfigurationError, match="consumer"):
        with queue.heartbeat("g", "", "0/1-1", every=0.01):
            pass
    with pytest.raises(ConfigurationError, match="every"):
        queue.heartbeat("g", "c", "0/1-1", every=0.0)
