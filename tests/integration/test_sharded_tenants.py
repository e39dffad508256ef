"""Reads by tenants: the bound of fair queueing for any number of tenants, and the index of the messages
that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import Empty, NewMessage, SyncShardedQueue  # noqa: E402
from tests import tiers  # noqa: E402
from tests.sharded_queues import ago, drain, pass_time  # noqa: E402

Open = Callable[..., SyncShardedQueue]

SPREAD = 50
"""Tenants that come at once and may go on in step; the others are spread."""


@pytest.fixture
def opened(redis_url: str) -> Iterator[Open]:
    """Return a function that opens the queue for reads by tenants."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            SyncShardedQueue(redis_url, "q", reads="tenants", **settings)
        )


def read(queue: SyncShardedQueue, count: int, batch: int = 100) -> list[str]:
    """Read and acknowledge messages, and return their tenants."""
    found: list[str] = []
    while len(found) < count:
        messages = queue.read_many("g", "c", count=min(batch, count - len(found)))
        queue.ack("g", *(message.id for message in messages))
        found += [message.shard_key for message in messages]
    return found


def given(command: Any) -> Generator[Any, Any, Any]:
    """Yield one command, and return its response."""
    return (yield command)


def write(queue: SyncShardedQueue, keys: list[str], weight: float = 1.0) -> None:
    queue.write_many([NewMessage({"n": 1}, key, None, weight) for key in keys])


# the bound of fair queueing -----------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("tenants", [40, 400, 4000])
def test_new_tenants_wait_for_no_more_than_one_message_of_each_tenant(
    opened, tenants, batch
) -> None:
    queue = opened()
    write(queue, [f"t{n % tenants}" for n in range(8000)])
    read(queue, tenants // 2)
    new = [f"z{n}" for n in range(20)]
    write(queue, new)
    served = read(queue, min(tenants, 200) + 20, batch)
    places = [served.index(key) + 1 for key in new]
    print(f"{tenants} tenants: places of 20 new ones {places}")
    assert max(places) <= min(tenants, SPREAD) + 20 + 10


@pytest.mark.parametrize("tenants", [80, 400, 4000])
def test_heavy_tenants_get_their_share_among_any_number_of_light_ones(opened, tenants) -> None:
    queue = opened()
    heavy = [f"h{n}" for n in range(4)]
    light = [f"t{n}" for n in range(tenants - 4)]
    turn = tenants - 4 + 40
    write(queue, [key for key in heavy for _ in range(45)], 10.0)
    write(queue, [key for key in light for _ in range(5)])
    share = sum(key in heavy for key in read(queue, 4 * turn)) / (4 * turn)
    assert abs(share - 40 / turn) <= 0.1 * 40 / turn


@pytest.mark.parametrize("seed", tiers.seeds(40, 4))
def test_no_two_waiting_tenants_differ_by_more_than_the_bound_of_fair_queueing(
    opened, seed
) -> None:
    """Goyal, Vin and Cheng 1996, theorem 1: while two flows wait, their services divided by their
    weights differ, in any interval, by at most one message of each divided by its weight."""
    chance = Random(seed)
    queue = opened(streams=8, streams_per_shard=2)
    weights = {f"t{n}": chance.choice((0.5, 1.0, 1.0, 3.0, 10.0)) for n in range(40)}
    left: Counter[str] = Counter()
    services: Counter[str] = Counter()
    began: dict[tuple[str, str], tuple[float, float]] = {}
    """Least and greatest difference of two tenants since both wait."""

    def look() -> None:
        waiting = sorted(key for key in left if left[key])
        pairs = {(a, b) for a in waiting for b in waiting if a < b}
        for pair in began.keys() - pairs:
            del began[pair]
        for a, b in pairs:
            ahead = services[a] / weights[a] - services[b] / weights[b]
            least, most = began.get((a, b), (ahead, ahead))
            began[a, b] = least, most = min(least, ahead), max(most, ahead)
            assert most - least <= 1 / weights[a] + 1 / weights[b] + 1e-6, (a, b)

    for _ in range(60):
        keys = chance.choices(sorted(weights), k=chance.choice((1, 5, 60)))
        queue.write_many([NewMessage({"n": 1}, key, None, weights[key]) for key in keys])
        left.update(keys)
        look()
        for _ in range(chance.randrange(4)):
            try:
                served = queue.read_many("g", "c", count=chance.choice((1, 3, 10)))
            except Empty:
                break
            for message in served:
                services[message.shard_key] += 1
                # The bound holds up to the message that ends the wait of a tenant.
                look()
                left[message.shard_key] -= 1
    assert sum(services.values()) > 100


# the index ----------------------------------------------------------------------------------------


def test_messages_in_the_index_count_as_waiting_and_are_nobodys(opened) -> None:
    queue = opened()
    written = [queue.write({"n": n}, shard_key=f"k{n % 3}") for n in range(10)]
    first = queue.read("g", "c")
    others = [id for id in written if id != first.id]
    found = queue.stats("g")
    assert (found.pending, found.waiting) == (1, 9)
    assert found.oldest == int(others[0].partition("/")[2].partition("-")[0]) / 1000
    assert queue.ack("g", *others) == 0, "nobody has read them"
    reclaimed = queue.reclaim("g", "d", min_idle=0, count=100)
    assert [message.id for message in reclaimed] == [first.id]
    assert queue.extend("g", "c", *others) == []
    assert queue.nack("g", "c", *others) == []
    read = drain(queue)
    assert {message.id for message in read} == set(others)
    assert {message.deliveries for message in read} == {1}


def test_a_message_in_the_index_whose_deadline_passes_is_cordoned(opened) -> None:
    queue = opened(streams_per_shard=1)
    queue.write({"n": 0})
    late = queue.write({"n": 1}, deadline=ago(seconds=-0.2))
    queue.write({"n": 2})
    assert queue.read("g", "c").values["n"] == b"0"
    while not (cordoned := queue.cordon()):
        pass  # until the deadline has passed
    assert [copy.id for copy in cordoned] == [late]
    assert [message.values["n"] for message in drain(queue)] == [b"2"]
    early = queue.write({"n": 3}, deadline=ago(hours=1))
    assert drain(queue) == []
    assert [copy.id for copy in queue.cordoned()] == [late, early]
    assert [copy.deliveries for copy in queue.cordoned()] == [0, 0]


def test_a_preferred_stream_is_read_from_the_index(opened) -> None:
    queue = opened(streams=8, streams_per_shard=1)
    written = [queue.write({"n": n}, shard_key=f"k{n % 5}") for n in range(50)]
    first = queue.read("g", "c")
    of_stream = [id for id in written if id.startswith(f"{first.stream}/") and id != first.id]
    found = [queue.read("g", "c", prefer_stream=first.stream).id for _ in of_stream]
    assert found == of_stream
    other = queue.read("g", "c", prefer_stream=first.stream)
    assert other.stream != first.stream
    drain(queue)
    assert queue.stats("g").pending == len(of_stream) + 2


@pytest.mark.parametrize("keys", [("waiting", "tenants"), ("waiting",), ("tenants",)])
def test_messages_whose_index_is_lost_are_reclaimed_as_first_deliveries(
    opened, client, keys
) -> None:
    queue = opened(max_deliveries=1)
    written = {queue.write({"n": n}, shard_key=f"k{n % 3}") for n in range(30)}
    first = queue.read("g", "c")
    assert queue.reclaim("g", "d", min_idle=3600, count=100) == []
    client.delete(*(f"{{q}}:{key}:g" for key in keys))
    queue.ack("g", first.id)
    found = queue.reclaim("g", "d", min_idle=0, count=100)
    assert {message.id for message in found} == written - {first.id}
    assert {message.deliveries for message in found} == {1}
    assert queue.stats("g").waiting == 0


@pytest.mark.parametrize("keys", [("waiting", "tenants"), ("waiting",), ("tenants",)])
def test_messages_of_a_lost_index_are_reclaimed_while_readers_fill_a_new_one(
    opened, client, keys
) -> None:
    queue = opened()
    written = {queue.write({"n": n}, shard_key=f"k{n % 3}") for n in range(30)}
    found = {queue.read("g", "c").id}
    client.delete(*(f"{{q}}:{key}:g" for key in keys))
    for _ in range(60):
        for n in range(2):  # so that the new index is never empty
            queue.write({"n": n}, shard_key="other")
        found.add(queue.read("g", "c").id)
        found |= {message.id for message in queue.reclaim("g", "d", min_idle=0, count=100)}
    assert written <= found
    drain(queue)
    assert not client.exists("{q}:waiting:g", "{q}:tenants:g")


@pytest.mark.parametrize("place", ["garbage", "", "0", "99", "131", "0119901/9", "011011/s", "\0"])
def test_a_foreign_member_of_the_index_keeps_no_message_back(opened, client, place) -> None:
    queue = opened()
    written = {queue.write({"n": n}, shard_key="a") for n in range(3)}
    found = {queue.read("g", "c").id}
    client.zadd("{q}:waiting:g", {f"1:a:{place}": 0})
    assert found | {message.id for message in drain(queue)} == written
    assert not client.exists("{q}:waiting:g", "{q}:tenants:g")


@pytest.mark.parametrize("tag", ["-inf", "-1e300", "1e300", "inf"])
def test_a_foreign_start_tag_neither_stops_reads_nor_takes_the_share_of_others(
    opened, client, tag
) -> None:
    queue = opened()
    write(queue, ["a", "b", "c"] * 20)
    read(queue, 3)
    client.zadd("{q}:tenants:g", {"b": tag})
    served = Counter(read(queue, 12, batch=1))
    assert abs(served["a"] - served["c"]) <= 1
    assert served["a"] >= 3
    assert len(drain(queue)) == 45


def test_a_reader_gets_messages_although_writers_are_faster_than_the_index(opened) -> None:
    queue = opened()
    steps = queue._steps.read_many("g", "c", 1, 0.0)
    command = next(steps)
    with pytest.raises(StopIteration) as end:
        for _ in range(100):
            write(queue, [f"t{n}" for n in range(600)])
            command = steps.send(queue._do(given(command)))
    assert len(end.value.value) == 1
    assert len(drain(queue)) % 600 == 599, "each of the others once"


def test_the_server_frees_long_keys_of_an_index_beside_its_commands(opened, client) -> None:
    def freed() -> int:
        memory = client.info("memory")
        return int(memory["lazyfreed_objects"] + memory["lazyfree_pending_objects"])

    queue = opened()
    write(queue, [f"t{n}" for n in range(300)])
    before = freed()
    assert len(drain(queue)) == 300
    assert freed() > before, "the passes, when the queue is empty"
    write(queue, [f"t{n}" for n in range(300)])
    queue.read("g", "c")
    before = freed()
    queue.drop_group("g")
    assert freed() >= before + 2, "the tenants and their messages"


def test_the_claims_of_hundreds_of_dead_consumers_are_reclaimed_beside_a_long_index(opened) -> None:
    queue = opened()
    write(queue, [f"t{n % 300}" for n in range(6000)])
    held = {m.id for n in range(200) for m in queue.read_many("g", f"dead {n}", count=20)}
    found: set[str] = set()
    calls = 0
    while found < held:
        calls += 1
        now = queue.reclaim("g", "alive", min_idle=0, count=500)
        fresh = {message.id for message in now if message.deliveries == 2}
        assert fresh <= held
        found |= fresh
        queue.ack("g", *fresh)
        assert calls < 50
    assert queue.stats("g").waiting == 2000


def test_a_fleet_with_readers_that_know_no_index_reads_each_message_once(opened, client) -> None:
    """Plain clients claim from the streams, reclaim what is idle for long, and record the newest
    notification at which they found the streams empty."""
    queue = opened(streams=4, streams_per_shard=2, max_deliveries=1)
    read: list[str] = []
    written: set[str] = set()
    keys = [f"{{q}}:s{stream}" for stream in range(4)]
    for turn in range(20):
        written |= {queue.write({"n": n}, shard_key=f"k{n}") for n in range(10)}
        read.append(queue.read("g", "c").id)  # moves the others to the index
        written.add(queue.write({"n": 10}, shard_key="later"))
        for key in keys if turn % 2 else ():
            found: Any = client.xreadgroup("g", "old", {key: ">"})
            read += [f"{key[5:]}/{id.decode()}" for id, _ in (found[0][1] if found else ())]
        (pending,) = client.xpending_range(keys[0], "g", "-", "+", 1, "fairlead:waiting") or [None]
        if pending is not None:
            assert pending["times_delivered"] == 0
            claimed = client.xclaim(keys[0], "g", "old", 0, [pending["message_id"]])
            read += [f"0/{id.decode()}" for id, _ in claimed]
        client.hdel("{q}:meta", "virtual:g")
        client.delete("{q}:passes:g")
        for _ in range(5):
            read.append(queue.read("g", "c").id)
    newest = client.xrevrange("{q}:notifications", count=1)[0][0].decode()
    client.hset("{q}:meta", "empty:g", f"{newest} 0-0")
    read += [message.id for message in drain(queue)]
    assert sorted(read) == sorted(written)


def test_a_reader_by_streams_also_reads_the_index_that_readers_by_tenants_left(
    opened, redis_url
) -> None:
    queue = opened()
    written = {queue.write({"n": n}, shard_key=f"k{n}") for n in range(30)}
    read = {queue.read("g", "c").id}
    with SyncShardedQueue(redis_url, "q", reads="streams") as other:
        written |= {other.write({"n": n}, shard_key=f"k{n}") for n in range(30)}
        read |= {message.id for message in drain(other)}
    assert read == written


def test_each_group_has_an_index_and_no_index_outlives_its_queue(opened, client) -> None:
    queue = opened(ttl=10.0)
    written = [queue.write({"n": n}, shard_key=f"k{n}") for n in range(10)]
    for group in ("g", "other", "dropped"):
        assert queue.read(group, "c").id in written
    assert client.zcard("{q}:waiting:dropped") == 9
    queue.drop_group("dropped")
    assert not client.exists("{q}:waiting:dropped", "{q}:tenants:dropped", "{q}:passes:dropped")
    assert client.ttl("{q}:waiting:g") == client.ttl("{q}:tenants:g") == -1
    pass_time(client, "q", 100_000)
    for id in written:
        queue.delete(id)
    assert not client.exists("{q}:waiting:other"), "places of deleted messages"
    assert drain(queue) == []
    assert [key for key in client.keys("{q}:*") if client.ttl(key) < 0] == []


def test_large_messages_come_into_the_index_a_few_at_a_time(opened, client) -> None:
    queue = opened(streams=4, streams_per_shard=2)
    body = b"x" * 100_000
    for part in range(6):
        queue.write_many([NewMessage({"body": body}, f"k{part * 10 + n}") for n in range(10)])
    client.script_flush()
    run = queue._steps.read_once("g", "c", 1)
    first = client.eval(run.script.text, 1, run.key, *run.arguments)
    assert first == [b"again"]
    assert 10 <= client.zcard("{q}:waiting:g") < 60
    assert len({message.shard_key for message in drain(queue)}) == 60


def test_the_plain_stream_gets_its_turn_beside_the_index(opened, client) -> None:
    queue = opened()
    write(queue, [f"t{n % 5}" for n in range(100)])
    for n in range(20):
        client.xadd("q", {"n": n})
    served = read(queue, 60)
    assert 9 <= served.count("") <= 11, "one of six tenants"
    client.xreadgroup("q", "plain consumer", {"q": ">"}, count=2)
    assert read(queue, 58).count("") == 8, (
        "messages of the plain stream stay there until they are read"
    )


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "1e9", "", "heavy"])
def test_a_foreign_weight_counts_as_one(opened, client, weight) -> None:
    queue = opened()
    write(queue, ["a", "b"] * 20)
    for _ in range(20):
        client.xadd("q", {"fairlead:key": "c", "fairlead:weight": weight, "n": 1})
    assert 9 <= read(queue, 30).count("c") <= 11
