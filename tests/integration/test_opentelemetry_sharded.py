"""Spans on a real Redis: a read of the sharded queue is linked to the write of its message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.errors import ConfigurationError, StoreUnavailable

pytest.importorskip("redis", reason="needs the extra redis")
pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

from fairlead.contrib.opentelemetry.sharded import TracedShardedQueue, TracedSyncShardedQueue  # noqa: E402
from fairlead.sharded import Empty, InvalidMessage, NewMessage  # noqa: E402
from tests.sharded_queues import Awaited  # noqa: E402
from tests.spans import Spans, attributes, ids, is_parent, linked, traceparent  # noqa: E402

TRACE, SPAN = 0xABCDEF0123456789ABCDEF0123456789, 0xABCDEF0123456789
TRACEPARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture(params=["asynchronous", "synchronous"])
async def queue(request: pytest.FixtureRequest, redis_url: str, spans: Spans) -> AsyncIterator[Any]:
    """Yield the asynchronous and the synchronous queue in turn."""
    if request.param == "synchronous":
        with TracedSyncShardedQueue(redis_url, "q", tracer_provider=spans.provider) as found:
            yield Awaited(found)
    else:
        async with TracedShardedQueue(
            redis_url, "q", tracer_provider=spans.provider, streams=16
        ) as found:
            yield found


async def test_a_read_is_linked_to_the_write_and_says_how_long_the_message_waited(
    queue: Any, spans: Spans
) -> None:
    with spans.tracer.start_as_current_span("request") as request:
        id = await queue.write({"n": 1}, shard_key="acme", context={"request": "7"})
    with spans.tracer.start_as_current_span("reader") as reader:
        message = await queue.read("g", "c", block=1.0)
    write, read = spans.only("write q"), spans.only("read q")
    assert is_parent(request, write) and is_parent(reader, read) and linked(read) == [ids(write)]
    assert message.context == {"request": "7", "traceparent": traceparent(write)}
    assert write.kind is SpanKind.PRODUCER and read.kind is SpanKind.CONSUMER
    assert attributes(write) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "write",
        "messaging.operation.type": "send",
        "messaging.destination.name": "q",
        "messaging.message.id": id,
    }
    assert attributes(read) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "read",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "q",
        "messaging.message.id": id,
        "messaging.destination.partition.id": message.stream,
        "messaging.consumer.group.name": "g",
        "fairlead.shard_key": "acme",
        "fairlead.deliveries": 1,
        "queue.pickup_delay_ms": message.waited * 1000,
    }
    assert (
        read.start_time is not None
        and read.end_time is not None
        and read.start_time <= read.end_time
    )


async def test_a_batch_is_one_span_linked_to_each_write(queue: Any, spans: Spans) -> None:
    await queue.write({"n": 0})
    await queue.write_many([NewMessage({"n": n}, context={"n": str(n)}) for n in range(1, 4)])
    messages = await queue.read_many("g", "dead", count=10)
    assert len(await queue.reclaim("g", "c", min_idle=0.0)) == 4
    one, many = spans.named("write q")
    assert attributes(many)["messaging.batch.message_count"] == 3
    assert sorted(message.context.get("n", "0") for message in messages) == list("0123")
    read, reclaim = spans.only("read q"), spans.only("reclaim q")
    assert attributes(read)["messaging.batch.message_count"] == 4
    assert (
        attributes(read)["queue.pickup_delay_ms"]
        == max(message.waited for message in messages) * 1000
    )
    assert sorted(linked(read)) == sorted(linked(reclaim)) == sorted([ids(one), ids(many)])


async def test_a_read_that_finds_nothing_leaves_no_span(queue: Any, spans: Spans) -> None:
    with pytest.raises(Empty):
        await queue.read("g", "c")
    with pytest.raises(Empty):
        await queue.read_many("g", "c", count=3)
    assert await queue.reclaim("g", "c", min_idle=0.0) == []
    assert spans.exporter.get_finished_spans() == ()


async def test_a_failed_operation_fails_its_span(queue: Any, spans: Spans) -> None:
    with pytest.raises(InvalidMessage):
        await queue.write({})
    with pytest.raises(ConfigurationError):
        await queue.read("", "c")
    write, read = spans.only("write q"), spans.only("read q")
    assert write.status.status_code is read.status.status_code is StatusCode.ERROR
    assert attributes(write)["error.type"] == "fairlead.sharded.errors.InvalidMessage"
    assert attributes(read)["error.type"] == "fairlead.errors.ConfigurationError"


async def test_a_trace_context_that_the_user_chose_stays(queue: Any, spans: Spans) -> None:
    await queue.write({"n": 1}, context={"traceparent": TRACEPARENT})
    assert (await queue.read("g", "c")).context == {"traceparent": TRACEPARENT}
    assert linked(spans.only("write q")) == linked(spans.only("read q")) == [(TRACE, SPAN)]


async def test_messages_written_without_tracing_are_read_without_links(
    queue: Any, spans: Spans, redis_url: str
) -> None:
    from fairlead.sharded import ShardedQueue

    async with ShardedQueue(redis_url, "q") as plain:
        await plain.write({"n": 1})
    await queue.read("g", "c")
    assert not spans.only("read q").links


async def test_a_redis_that_is_away_fails_the_span(spans: Spans) -> None:
    async with TracedShardedQueue(
        "redis://127.0.0.1:1/0", "q", tracer_provider=spans.provider
    ) as queue:
        with pytest.raises(StoreUnavailable):
            await queue.write({"n": 1})
    assert attributes(spans.only("write q"))["error.type"] == "fairlead.errors.StoreUnavailable"


@pytest.mark.parametrize("kind", [TracedShardedQueue, TracedSyncShardedQueue])
def test_dead_letters_have_the_steps_of_the_traced_queue(kind: Any) -> None:
    """The steps know the greatest number of streams, by which scripts declare their keys."""
    queue = kind("redis://127.0.0.1:1", "q")
    assert queue._dead_letters._queue is queue._steps
