"""Spans for writes and reads of the sharded queue, linked through the message, whose context
carries the trace context."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider

from fairlead.contrib.opentelemetry.spans import (
    attributes,
    carried,
    current_carrier,
    fail,
    links,
    tracer,
    with_carrier,
)
from fairlead.sharded import Empty, Message, NewMessage, ShardedQueue, SyncShardedQueue
from fairlead.sharded.connecting import Connected
from fairlead.sharded.settings import ShardedSettings
from fairlead.sharded.steps import QueueSteps, Steps


class _TracedSteps(QueueSteps):
    """The operations of a queue, with spans for writes, reads and reclaims."""

    def __init__(self, settings: ShardedSettings, tracer: Tracer) -> None:
        super().__init__(settings, time.monotonic)
        self._tracer = tracer

    def write_many(
        self,
        messages: Iterable[NewMessage],
        streams: int | None = None,
        streams_per_shard: int | None = None,
    ) -> Steps[list[str]]:
        messages = list(messages)
        with self._writing(len(messages)) as span:
            carrying = _carrying(messages, span)
            ids = yield from super().write_many(carrying, streams, streams_per_shard)
            if len(ids) == 1:
                span.set_attribute("messaging.message.id", ids[0])
            return ids

    def read_many(
        self,
        group: str,
        consumer: str,
        count: int,
        block: float,
        prefer_stream: int | str | None = None,
    ) -> Steps[list[Message]]:
        with self._reading("read", group) as found:
            found += yield from super().read_many(group, consumer, count, block, prefer_stream)
            return found

    def reclaim(
        self, group: str, consumer: str, min_idle: float, count: int
    ) -> Steps[list[Message]]:
        with self._reading("reclaim", group) as found:
            found += yield from super().reclaim(group, consumer, min_idle, count)
            return found

    @contextmanager
    def _writing(self, count: int) -> Iterator[Span]:
        name = self.settings.name
        with self._tracer.start_as_current_span(
            f"write {name}",
            kind=SpanKind.PRODUCER,
            attributes=attributes("write", "send", name, count),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                fail(span, error)
                raise

    @contextmanager
    def _reading(self, operation: str, group: str) -> Iterator[list[Message]]:
        """Add the messages of a read to the list. The span is made after the read, because samplers
        need its links at the start."""
        began, failure = time.time_ns(), None
        messages: list[Message] = []
        try:
            yield messages
        except Empty:
            raise
        except Exception as error:
            failure = error
            raise
        finally:
            if messages or failure is not None:
                self._end_read(operation, group, began, messages, failure)

    def _end_read(
        self,
        operation: str,
        group: str,
        began: int,
        messages: list[Message],
        failure: Exception | None,
    ) -> None:
        name = self.settings.name
        about = attributes(operation, "receive", name, 1 if failure is not None else len(messages))
        about["messaging.consumer.group.name"] = group
        if messages:
            about["queue.pickup_delay_ms"] = max(message.waited for message in messages) * 1000
        if len(messages) == 1:
            (message,) = messages
            about["messaging.message.id"] = message.id
            about["messaging.destination.partition.id"] = message.stream
            about["fairlead.shard_key"] = message.shard_key
            about["fairlead.deliveries"] = message.deliveries
        written = links(carried(message.context) for message in messages)
        span = self._tracer.start_span(
            f"{operation} {name}",
            kind=SpanKind.CONSUMER,
            attributes=about,
            links=written,
            start_time=began,
        )
        if failure is not None:
            fail(span, failure)
        span.end()


class _Traced(Connected):
    """Base of both traced queues."""

    def __init__(
        self,
        redis: Any,
        name: str,
        *,
        tracer_provider: TracerProvider | None = None,
        **settings: Any,
    ) -> None:
        """`tracer_provider`: default is that of the process. `settings`: those of
        `ShardedQueue`."""
        self._tracer = tracer(tracer_provider)
        super().__init__(redis, name, **settings)

    def _made_steps(self) -> QueueSteps:
        return _TracedSteps(self._settings, self._tracer)


class TracedShardedQueue(_Traced, ShardedQueue):
    """A `ShardedQueue` with spans.

    A write is a span `write QUEUE` of kind PRODUCER, one for a whole `write_many`. Its trace
    context is added to the context of the messages; values of the user stay. A read or reclaim that
    returns messages is a span `read QUEUE` or `reclaim QUEUE` of kind CONSUMER, a child of the
    current span and linked to the write of each message. Its attribute `queue.pickup_delay_ms` is
    the longest wait of a message. A read that returns nothing or is cancelled leaves no span,
    because a waiting reader would make thousands. The reader makes its own span for the work on a
    message, as in `tracer.start_as_current_span("encode",
    context=opentelemetry.propagate.extract(message.context))`.
    """


class TracedSyncShardedQueue(_Traced, SyncShardedQueue):
    """A `SyncShardedQueue` with spans: see `TracedShardedQueue`."""


def _carrying(messages: Iterable[NewMessage], span: Span) -> list[NewMessage]:
    carrier = current_carrier()
    return [
        msgspec.structs.replace(each, context=with_carrier(each.context, carrier, span))
        for each in messages
    ]
