"""Reads by tenants: the bound of fair queueing for any number of tenants, and the index of the messages
that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

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


def write(queue: SyncShardedQueue, keys: list[str], weight: float = 1.0) -> None:
    queue.write_many([NewMessage({"n": 1}, key, None, weight) for key in keys])


# the bound of fair queueing -----------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("tenants", [40, 4000])
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


@pytest.mark.parametrize("seed", tiers.seeds(4))
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


@pytest.mark.parametrize("place", ["garbage", "", "131", "011011/s", "\0"])
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


@pytest.mark.parametrize("weight", ["0", "nan", "1e9", "heavy"])
def test_a_foreign_weight_counts_as_one(opened, client, weight) -> None:
    queue = opened()
    write(queue, ["a", "b"] * 20)
    for _ in range(20):
        client.xadd("q", {"fairlead:key": "c", "fairlead:weight": weight, "n": 1})
    assert 9 <= read(queue, 30).count("c") <= 11
