"""The order of reads: rotation over streams, shares of tenants, and the protection by shuffle
sharding from a flood."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.core.sharding.shards import shard  # noqa: E402
from fairlead.sharded import SyncShardedQueue  # noqa: E402
from tests.sharded_queues import drain  # noqa: E402

Open = Callable[..., SyncShardedQueue]


@pytest.fixture
def opened(redis_url: str) -> Iterator[Open]:
    """Return a function that opens the queue with 64 streams, 6 a shard."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(SyncShardedQueue(redis_url, "q", **settings))


def apart(streams: int, per_shard: int, tenants: int) -> list[str]:
    """Return tenants that share no stream."""
    found: list[str] = []
    taken: set[int] = set()
    n = 0
    while len(found) < tenants:
        own = set(shard(f"tenant {n}", streams, per_shard))
        if not own & taken:
            found.append(f"tenant {n}")
            taken |= own
        n += 1
    return found


class Bulk:
    """A tenant with six full streams beside one with one waiting message at a time."""

    def __init__(self, queue: SyncShardedQueue) -> None:
        self.queue = queue
        self.bulk, self.small = apart(64, 6, 2)
        for n in range(600):
            queue.write({"n": n}, shard_key=self.bulk)
        self._write_small()

    def read(self, count: int) -> str:
        """Return the tenants that were served, `b` or `s` each."""
        served = ""
        for _ in range(count):
            message = self.queue.read("g", "c")
            self.queue.ack("g", message.id)
            served += "b" if message.shard_key == self.bulk else "s"
            if message.shard_key == self.small:
                self._write_small()
        return served

    def _write_small(self) -> None:
        self.queue.write({"n": 0}, shard_key=self.small)


def test_by_streams_a_small_tenant_waits_for_at_most_six_others(opened) -> None:
    served = Bulk(opened(reads="streams")).read(350)
    assert "b" * 7 not in served
    assert served.count("b") > 2 * served.count("s"), (
        "two to six reads of the flood for each read of the small tenant"
    )


def test_by_tenants_a_weight_set_at_run_time_counts_for_waiting_messages(opened) -> None:
    queue = opened(reads="tenants")
    tenants = Bulk(queue)
    assert Counter(tenants.read(100))["s"] == 50
    queue.set_weight(tenants.small, 3.0)
    assert 73 <= Counter(tenants.read(100))["s"] <= 76
    queue.set_weight(tenants.small, None)
    assert 49 <= Counter(tenants.read(100))["s"] <= 51


def test_by_tenants_virtual_time_is_lowered_long_before_it_exceeds_the_exact_integers(
    opened, redis_url
) -> None:
    queue = opened(reads="tenants")
    with redis.Redis.from_url(redis_url) as client:
        a, b = apart(64, 6, 2)
        for n in range(40):
            queue.write({"n": n}, shard_key=a)
            queue.write({"n": n}, shard_key=b, weight=3.0)
        client.hset("{q}:meta", "virtual:g", 2**52)
        served = Counter(queue.read("g", "c").shard_key for _ in range(40))
        assert abs(served[b] - 30) <= 1
        assert float(client.hget("{q}:meta", "virtual:g")) < 2**50


def test_by_tenants_places_of_messages_that_are_gone_are_skipped(opened, redis_url) -> None:
    queue = opened(reads="tenants", streams=8, streams_per_shard=2)
    written = [queue.write({"n": n}, shard_key=f"k{n % 5}") for n in range(60)]
    with redis.Redis.from_url(redis_url) as client:
        read = [queue.read("g", "c")]
        for n in range(20):
            doomed = next(id for id in written if id not in {message.id for message in read})
            written.remove(doomed)
            if n % 2:
                queue.delete(doomed)
            else:  # a consumer that does not know the index claims it
                stream, _, entry = doomed.partition("/")
                assert client.xclaim(f"{{q}}:s{stream}", "g", "other", 0, [entry])
            read.append(queue.read("g", "c"))
    assert queue.stats("g").waiting == len(written) - len(read)
    read += drain(queue)
    assert sorted(message.id for message in read) == sorted(written)
    assert queue.stats("g").pending == 21 + 10
