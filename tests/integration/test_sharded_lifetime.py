"""The time to live of a sharded queue, which counts only while the queue is empty."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from redis import Redis  # noqa: E402

from fairlead.sharded import Empty, NewMessage, SyncShardedQueue  # noqa: E402
from services.redis import RedisServer  # noqa: E402
from tests.sharded_queues import ago, drain, key_of, pass_time  # noqa: E402
from tests.waiting import until  # noqa: E402

HOUR = 3_600_000  # milliseconds


def is_later_than(instant: float) -> Any:
    return lambda: time.monotonic() > instant


# time to live -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_server")  # skips the test without Redis
async def test_a_server_that_was_down_for_longer_than_ttl_has_lost_nothing() -> None:
    with RedisServer(appendonly=True) as server:
        with SyncShardedQueue(server.url, "q", ttl=4.0, max_deliveries=1) as queue:
            queue.write_many([NewMessage({"n": n}, shard_key=f"k{n % 7}") for n in range(100)])
            queue.write({"n": 100}, at=ago(seconds=-1))
            dead = queue.read("g", "dead").id
            assert queue.reclaim("g", "c", min_idle=0) == []
            claimed = queue.read("g", "dead").id
        server.crash()
        await until(is_later_than(time.monotonic() + 4.5))
        server.start()
        with SyncShardedQueue(server.url, "q", ttl=4.0, max_deliveries=1) as queue:
            read = drain(queue)
            assert len(read) == 99
            assert [letter.id for letter in queue.dead_letter_heads()] == [dead]
            found = queue.stats("g")
            assert (found.pending, found.waiting) == (1, 0)
            assert queue.ack("g", claimed) == 1


def test_messages_of_a_queue_that_nobody_uses_have_no_time_to_live(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", streams=4, streams_per_shard=1, ttl=1000.0) as queue:
        for group in ("g", "other"):
            with pytest.raises(Empty):
                queue.read(group, "c")
        queue.write({"n": 1}, shard_key=key_of(4, 1))
        queue.write({"n": 2}, shard_key=key_of(4, 2))
        queue.ack("other", queue.read("other", "c").id)
        pass_time(client, "q", 100 * HOUR)
        assert len(drain(queue)) == 2
        assert queue.len() == 1, "the other group still needs a message"


async def test_an_empty_queue_expires_after_its_last_use(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", ttl=1.0) as queue:
        queue.write({"n": 1}, deadline=ago(hours=-1))
        drain(queue)
        await until(lambda: client.keys("*") == [])


def test_readers_keep_an_empty_queue_and_the_next_write_makes_it_stay(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", streams=4, streams_per_shard=1, ttl=1000.0) as queue:
        queue.write({"n": 1})
        queue.set_weight("acme", 2.0)
        drain(queue)
        for _ in range(5):
            pass_time(client, "q", 900_000)
            with pytest.raises(Empty):
                queue.read("g", "c")
        assert client.hget("{q}:weights", "acme") == b"2.0"
        queue.write({"n": 2})
        pass_time(client, "q", 100 * HOUR)
        assert client.hget("{q}:weights", "acme") == b"2.0"
        assert [message.values["n"] for message in drain(queue)] == [b"2"]


# the clock ----------------------------------------------------------------------------------------


def future(client: Redis) -> str:
    """Return an id that the clock of the server reaches in an hour."""
    return f"{int(client.time()[0]) * 1000 + HOUR}-0"


def test_notifications_are_trimmed_while_the_clock_is_behind_their_ids(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q") as queue:
        queue.write({"n": 0})
        client.xadd("{q}:notifications", {"in": "0"}, id=future(client))
        for n in range(1, 3000):
            queue.write({"n": n})
        assert client.xlen("{q}:notifications") < 1500
        assert len(drain(queue)) == 3000


def test_copies_are_dropped_after_ttl_of_use_whatever_the_clock_says(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", ttl=1000.0, max_deliveries=1) as queue:
        client.xadd(
            "{q}:cordoned", {"fairlead:id": "0/1-1", "fairlead:deliveries": 1}, id=future(client)
        )
        client.hset("{q}:meta", "refreshed", int(client.time()[0]) * 1000 + HOUR)

        def remove(n: int) -> None:
            queue.write({"n": n}, deadline=ago(hours=1))
            with pytest.raises(Empty):
                queue.read("g", "c")

        for n in range(8):
            remove(n)
            pass_time(client, "q", 126_000)
        assert len(queue.cordoned()) == 9, "kept for ttl"
        for n in range(20):
            remove(8 + n)
            pass_time(client, "q", 126_000)
        assert 8 <= len(queue.cordoned()) <= 12
