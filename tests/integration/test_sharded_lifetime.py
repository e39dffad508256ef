"""The time to live of a sharded queue, which counts only while the queue is empty, and the keys and
marks of writes that failed."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from redis import Redis  # noqa: E402

from fairlead import App  # noqa: E402
from fairlead.backends.redis.sharded.dead_letters import Revival  # noqa: E402
from fairlead.backends.redis.sharded.message import ClaimEnd, Entry, NewMessage, entry  # noqa: E402
from fairlead.sharded import Empty, QueueDamaged, SyncShardedQueue  # noqa: E402
from fairlead.testing import running, settled  # noqa: E402
from services.redis import RedisServer  # noqa: E402
from tests.sharded_queues import ago, drain, key_of, pass_time, until  # noqa: E402

HOUR = 3_600_000  # milliseconds


def put(queue: SyncShardedQueue, *entries: Entry) -> list[Any]:
    return queue._do(queue._steps.put(entries))


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
            assert [letter.id for letter in queue.dead_letters()] == [dead]
            found = queue.stats("g")
            assert (found.pending, found.waiting) == (1, 0)
            assert queue.ack("g", claimed) == 1


@pytest.mark.usefixtures("redis_server")
async def test_tasks_on_redis_alone_outlive_a_long_stop_of_the_server() -> None:
    with RedisServer(appendonly=True) as server:
        app = App(f"{server.url}?ttl=1")
        ran: list[int] = []

        @app.task
        async def note(n: int) -> None:
            ran.append(n)

        note.submit_many([{"n": n} for n in range(100)])
        note.options(priority=1).submit(100)
        server.crash()
        await until(is_later_than(time.monotonic() + 1.5))
        server.start()
        async with running(app) as node:
            await settled(app, node)
        app.close()
        assert sorted(ran) == list(range(101))


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
    app = App(f"{redis_url}?ttl=1&unique=1")

    @app.task
    async def note(n: int) -> None: ...

    async with running(app) as node:
        note.submit(1)
        note.options(priority=2, unique_key="k").submit(2)
        await settled(app, node)
        await until(lambda: client.hget("{fairlead:default}:5:meta", "rests") == b"1")
        await until(lambda: client.hget("{fairlead:default}:2:meta", "rests") == b"1")
    app.close()
    await until(lambda: client.keys("{fairlead:default}*") == [])


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


def test_a_section_that_is_empty_takes_no_other_section_with_it(redis_url, client) -> None:
    app = App(f"{redis_url}?ttl=1000")

    @app.task
    async def note(n: int) -> None: ...

    note.options(priority=1).submit(1)
    note.options(priority=9).submit(2)
    endpoint = app.connector.store.endpoint  # type: ignore[attr-defined]
    lanes = endpoint.lanes("default", 5)
    with SyncShardedQueue(redis_url, "unused") as queue:
        response = queue._do(_one(lanes.at(1).read_once("workers", "c", 1)))
        id = f"{response[3][0].decode()}/{response[3][1].decode()}"
        queue._do(lanes.at(1).ack("workers", [id]))
        queue._do(_one(lanes.at(1).read_once("workers", "c", 1)))
        assert client.hget("{fairlead:default}:1:meta", "rests") == b"1"
        pass_time(client, "fairlead:default", 100 * HOUR)
        assert 9 in queue._do(lanes.known())
        assert queue._do(lanes.at(9).stats("workers")).waiting == 1
    app.close()


def _one(command: Any) -> Any:
    return (yield command)


# the clock ----------------------------------------------------------------------------------------


def future(client: Redis) -> str:
    """Return an id that the clock of the server reaches in an hour."""
    return f"{int(client.time()[0]) * 1000 + HOUR}-0"


def test_notifications_are_trimmed_while_the_clock_is_behind_their_ids(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q") as queue:
        queue.write({"n": 0})
        client.xadd("{q}:notifications", {"s": "", "in": "0"}, id=future(client))
        for n in range(1, 3000):
            queue.write({"n": n})
        assert client.xlen("{q}:notifications") < 1500
        assert len(drain(queue)) == 3000


def test_a_reader_is_woken_while_the_clock_is_behind_the_notifications(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", streams=64, streams_per_shard=1) as queue:
        queue.write({"n": 0})
        client.xadd("{q}:notifications", {"s": "", "in": "0"}, id=future(client))
        drain(queue)
        after = client.xrevrange("{q}:notifications", count=1)[0][0].decode()
        queue.write_many([NewMessage({"n": n}, shard_key=f"k{n}") for n in range(20)])
        response = queue._do(_one(queue._steps.read_once("g", "c", 20, "", after)))
        assert len(response[3:]) == 20


def test_dead_letters_outlive_a_clock_that_jumps_ahead(redis_url, client) -> None:
    with SyncShardedQueue(redis_url, "q", ttl=1000.0, max_deliveries=1) as queue:
        for n in range(300):
            client.xadd("{q}:dead", {"fairlead:id": f"0/1-{n}", "fairlead:deliveries": 1, "n": n})
        now = int(client.time()[0]) * 1000
        old = client.xrange("{q}:dead")
        client.delete("{q}:dead")  # give them ids from before the jump
        for n, (_, fields) in enumerate(old):
            client.xadd("{q}:dead", fields, id=f"{now - 100 * HOUR}-{n}")
        queue.write({"n": 300})
        queue.read("g", "dead")
        assert queue.reclaim("g", "c", min_idle=0) == []
        assert len(queue.dead_letters()) == 301


@pytest.mark.parametrize("kind", ["dead", "cordoned"])
def test_copies_are_dropped_after_ttl_of_use_whatever_the_clock_says(
    redis_url, client, kind
) -> None:
    with SyncShardedQueue(redis_url, "q", ttl=1000.0, max_deliveries=1) as queue:
        client.xadd(
            f"{{q}}:{kind}", {"fairlead:id": "0/1-1", "fairlead:deliveries": 1}, id=future(client)
        )
        client.hset("{q}:meta", "refreshed", int(client.time()[0]) * 1000 + HOUR)

        def remove(n: int) -> None:
            if kind == "dead":
                queue.write({"n": n})
                queue.read("g", "dead")
                queue.reclaim("g", "c", min_idle=0)
            else:
                queue.write({"n": n}, deadline=ago(hours=1))
                with pytest.raises(Empty):
                    queue.read("g", "c")

        removed = queue.dead_letters if kind == "dead" else queue.cordoned
        for n in range(8):
            remove(n)
            pass_time(client, "q", 126_000)
        assert len(removed()) == 9, "kept for ttl"
        for n in range(20):
            remove(8 + n)
            pass_time(client, "q", 126_000)
        assert 8 <= len(removed()) <= 12


# writes that fail ---------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
def test_a_write_that_fails_leaves_no_unique_key_and_no_mark(redis_url, client, later) -> None:
    with SyncShardedQueue(redis_url, "q", streams=1, streams_per_shard=1) as queue:
        at = int(client.time()[0]) * 1000 + HOUR if later else ""
        made = entry(NewMessage({"n": 1}))._replace(
            unique="invoice 7", window=HOUR, name="a", once="m", at=at, ticket="t"
        )
        damaged = "{q}:later" if later else "{q}:s0"
        client.set(damaged, "foreign")
        with pytest.raises(QueueDamaged):
            put(queue, made)
        client.delete(damaged)
        ((stream, _),) = put(queue, made)
        assert stream is not None
        assert put(queue, made) == [[None, b"a"]]


async def test_a_task_is_submitted_anew_after_the_repair_of_its_queue(redis_url, client) -> None:
    app = App(f"{redis_url}?streams=1&per_shard=1")
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    client.set("{fairlead:default}:5:s0", "foreign")
    with pytest.raises(QueueDamaged):
        note.options(unique_key="k").submit(1)
    client.delete("{fairlead:default}:5:s0")
    async with running(app) as node:
        assert note.options(unique_key="k").submit(1).is_new
        await settled(app, node)
    app.close()
    assert ran == [1]


async def test_a_trigger_is_written_after_the_repair_of_its_queue(
    sqlite_url, redis_url, client
) -> None:
    app = App(sqlite_url, channel=f"{redis_url}?streams=1&per_shard=1")
    app.migrate()
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    @app.task(queue="other")
    async def other(n: int) -> None:
        ran.append(n)

    async with running(app) as node:
        app.channel._heal_every = 0.2
        client.set("{fairlead:triggers:default}:5:s0", "foreign")
        note.submit(1)
        await until(lambda: client.exists("{fairlead:triggers:default}:sections") == 0)
        other.submit(2)
        await until(lambda: 2 in ran)
        assert 1 not in ran, "the damaged queue stops no other one"
        client.delete("{fairlead:triggers:default}:5:s0")
        await settled(app, node)
    app.close()
    assert ran == [2, 1]


@pytest.mark.parametrize("how", ["again", "later"])
def test_a_claim_whose_end_fails_is_not_lost(redis_url, client, how) -> None:
    with SyncShardedQueue(redis_url, "q", streams=2, streams_per_shard=1) as queue:
        queue.write({"n": 1}, shard_key=key_of(2, 0))
        id = queue.read("g", "c").id
        damaged = "{q}:s1" if how == "again" else "{q}:later"
        client.set(damaged, "foreign")
        end = Entry(["n", "1"], key_of(2, 1), "9999999999999", "t")
        with pytest.raises(QueueDamaged):
            queue._do(queue._steps.finish("g", "c", [ClaimEnd(id, how, end)]))
        client.delete(damaged)
        assert queue.pending("g") == 1
        assert queue._do(queue._steps.finish("g", "c", [ClaimEnd(id, how, end)])) == [True]
        found = queue.stats("g")
        assert (found.pending, found.waiting + found.later) == (0, 1)


def test_a_dead_letter_stays_if_it_cannot_be_written_back(redis_url, client) -> None:
    with SyncShardedQueue(
        redis_url, "q", streams=2, streams_per_shard=1, max_deliveries=1
    ) as queue:
        queue.write({"n": 1}, shard_key=key_of(2, 0))
        queue.read("g", "c")
        queue.reclaim("g", "c", min_idle=0)
        (head,) = queue.dead_letter_heads()
        revival = Revival(msgspec.structs.replace(head, shard_key=key_of(2, 1)))
        client.set("{q}:s1", "foreign")
        with pytest.raises(QueueDamaged):
            queue._do(queue._dead_letters.revive([revival]))
        assert len(queue.dead_letters()) == 1
        client.delete("{q}:s1")
        assert queue._do(queue._dead_letters.revive([revival])) == [True]
        assert (queue.len(), len(queue.dead_letters())) == (1, 0)


def test_marks_that_outlive_their_messages_are_dropped_with_the_last_message(
    redis_url, client
) -> None:
    with SyncShardedQueue(redis_url, "q", streams=1, streams_per_shard=1) as queue:
        made = entry(NewMessage({"n": 1}))._replace(once="m")
        put(queue, made)
        client.delete("{q}:s0")  # as an eviction does
        with pytest.raises(Empty):
            queue.read("g", "c")
        ((stream, _),) = put(queue, made)
        assert stream is not None
