"""Many messages in one round trip, messages for later, and claims that are extended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.sharded import Empty, InvalidMessage, NewMessage, SyncShardedQueue, UnknownMessage  # noqa: E402
from fairlead.sharded.steps import MOST_BYTES, QueueSteps, RunScript  # noqa: E402
from tests.sharded_queues import drain  # noqa: E402


@pytest.fixture(params=["streams", "tenants"])
def queue(redis_url: str, request: pytest.FixtureRequest) -> Iterator[SyncShardedQueue]:
    with SyncShardedQueue(
        redis_url, "q", streams=16, streams_per_shard=2, reads=request.param
    ) as found:
        yield found


def number(message: Any) -> int:
    return int(message.values["n"])


def some(count: int, tenants: int = 5) -> list[NewMessage]:
    return [
        NewMessage({"n": n}, f"tenant {n % tenants if n < count // 2 else 0}") for n in range(count)
    ]


def test_write_many_equals_single_writes(queue, client) -> None:
    ids = queue.write_many(some(1200))
    positions = [(id.partition("/")[0], n) for n, id in enumerate(ids)]
    client.flushdb()
    singly = [
        queue.write(each.values, shard_key=each.shard_key).partition("/")[0] for each in some(1200)
    ]
    assert positions == list(zip(singly, range(1200), strict=True))


def test_read_many_keeps_the_order_of_single_reads(queue) -> None:
    for group in ("one", "g"):
        with pytest.raises(Empty):
            queue.read(group, "c")
    queue.write_many(some(300))
    singly = [number(message) for message in drain(queue, "one")]
    many = []
    for count in (1, 7, 100, 500):
        found = queue.read_many("g", "c", count=count)
        assert len(found) <= count
        queue.ack("g", *(message.id for message in found))
        many += [number(message) for message in found]
    assert many == singly
    with pytest.raises(Empty):
        queue.read_many("g", "c", count=5)


def test_write_many_writes_nothing_if_one_message_is_invalid(queue) -> None:
    with pytest.raises(InvalidMessage):
        queue.write_many([NewMessage({"n": 1}), NewMessage({})])
    assert queue.len() == 0


def test_a_message_for_later_comes_at_its_time_and_not_before(queue) -> None:
    at = datetime.now(UTC) + timedelta(seconds=0.4)
    id = queue.write({"n": 1}, at=at)
    assert id.startswith("later/") and queue.stats("g").later == 1 and queue.len() == 0
    with pytest.raises(Empty):
        queue.read("g", "c")
    # The waiting reader wakes by itself, since nothing is written meanwhile.
    message = queue.read("g", "c", block=30.0)
    assert datetime.now(UTC) >= at - timedelta(milliseconds=2)
    assert number(message) == 1 and queue.stats("g").later == 0


def test_a_message_for_later_can_be_deleted(queue) -> None:
    id = queue.write({"n": 1}, at=datetime.now(UTC) + timedelta(hours=1))
    queue.delete(id)
    with pytest.raises(UnknownMessage):
        queue.delete(id)
    assert queue.stats("g").later == 0


def test_a_claim_that_is_extended_is_not_reclaimed(queue) -> None:
    queue.write_many(some(4))
    held = queue.read_many("g", "alive", count=2)
    lost = queue.read_many("g", "dead", count=2)
    ids = [message.id for message in held + lost]
    assert queue.extend("g", "alive", *ids) == [message.id for message in held]
    # With min_idle 0 every claim may be taken, except those extended since.
    assert {message.id for message in queue.reclaim("g", "other", min_idle=0.0)} == set(ids)
    assert queue.extend("g", "alive", *ids) == [], "another consumer has reclaimed the messages"


def test_an_extension_does_not_count_as_a_delivery(queue) -> None:
    queue.write({"n": 1})
    message = queue.read("g", "c")
    for _ in range(10):
        assert queue.extend("g", "c", message.id)
    assert [found.deliveries for found in queue.reclaim("g", "d", min_idle=0.0)] == [2]


def test_the_context_of_a_writer_reaches_the_reader(queue) -> None:
    queue.write({"n": 1}, context={"traceparent": "00-a-b-01"})
    assert queue.read("g", "c").context == {"traceparent": "00-a-b-01"}


# sizes and costs ----------------------------------------------------------------------------------


def test_large_messages_are_written_and_read_by_scripts_of_a_limited_size(
    queue, client, monkeypatch
) -> None:
    """One command of 500 MB would hold the server, and take that much of its memory."""
    sent: list[int] = []
    run = QueueSteps.run

    def measured(self: QueueSteps, script: Any, *arguments: Any) -> RunScript:
        sent.append(sum(len(each) for each in arguments if isinstance(each, bytes)))
        return run(self, script, *arguments)

    with pytest.raises(Empty):
        queue.read("g", "c")
    large = NewMessage({"body": b"x" * 300_000})
    monkeypatch.setattr(QueueSteps, "run", measured)
    assert len(set(queue.write_many([large] * 20))) == 20
    found = []
    while len(found) < 20:  # a read is limited too
        found += queue.read_many("g", "c", count=20)
    assert 20 * 300_000 <= sum(sent) < 20 * 301_000 and max(sent) <= MOST_BYTES
