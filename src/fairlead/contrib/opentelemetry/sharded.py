"""Spans for writes and reads of the sharded queue, linked through the message, whose context
carries the trace context."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from opentelemetry.trace import Span, SpanKind, TracerProvider

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
from fairlead.sharded.message import Value


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
        super().__init__(redis, name, **settings)
        self._tracer = tracer(tracer_provider)

    @contextmanager
    def _writing(self, count: int) -> Iterator[Span]:
        name = self._settings.name
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
        name = self._settings.name
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

    async def write(
        self,
        values: Mapping[str, Value],
        *,
        context: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """See `ShardedQueue.write`."""
        with self._writing(1) as span:
            id = await super().write(
                values, context=with_carrier(context, current_carrier(), span), **options
            )
            span.set_attribute("messaging.message.id", id)
            return id

    async def write_many(self, messages: Iterable[NewMessage], **options: Any) -> list[str]:
        """See `ShardedQueue.write_many`."""
        messages = list(messages)
        with self._writing(len(messages)) as span:
            return await super().write_many(_carrying(messages, span), **options)

    async def read(self, group: str, consumer: str, **options: Any) -> Message:
        """See `ShardedQueue.read`."""
        with self._reading("read", group) as found:
            found.append(await super().read(group, consumer, **options))
            return found[0]

    async def read_many(self, group: str, consumer: str, **options: Any) -> list[Message]:
        """See `ShardedQueue.read_many`."""
        with self._reading("read", group) as found:
            found += await super().read_many(group, consumer, **options)
            return found

    async def reclaim(self, group: str, consumer: str, **options: Any) -> list[Message]:
        """See `ShardedQueue.reclaim`."""
        with self._reading("reclaim", group) as found:
            found += await super().reclaim(group, consumer, **options)
            return found


class TracedSyncShardedQueue(_Traced, SyncShardedQueue):
    """A `SyncShardedQueue` with spans: see `TracedShardedQueue`."""

    def write(
        self,
        values: Mapping[str, Value],
        *,
        context: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """See `ShardedQueue.write`."""
        with self._writing(1) as span:
            id = super().write(
                values, context=with_carrier(context, current_carrier(), span), **options
            )
            span.set_attribute("messaging.message.id", id)
            return id

    def write_many(self, messages: Iterable[NewMessage], **options: Any) -> list[str]:
        """See `ShardedQueue.write_many`."""
        messages = list(messages)
        with self._writing(len(messages)) as span:
            return super().write_many(_carrying(messages, span), **options)

    def read(self, group: str, consumer: str, **options: Any) -> Message:
        """See `ShardedQueue.read`."""
        with self._reading("read", group) as found:
            found.append(super().read(group, consumer, **options))
            return found[0]

    def read_many(self, group: str, consumer: str, **options: Any) -> list[Message]:
        """See `ShardedQueue.read_many`."""
        with self._reading("read", group) as found:
            found += super().read_many(group, consumer, **options)
            return found

    def reclaim(self, group: str, consumer: str, **options: Any) -> list[Message]:
        """See `ShardedQueue.reclaim`."""
        with self._reading("reclaim", group) as found:
            found += super().reclaim(group, consumer, **options)
            return found


def _carrying(messages: Iterable[NewMessage], span: Span) -> list[NewMessage]:
    carrier = current_carrier()
    return [
        msgspec.structs.replace(each, context=with_carrier(each.context, carrier, span))
        for each in messages
    ]
