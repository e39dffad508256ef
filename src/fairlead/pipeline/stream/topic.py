"""Kafka topics: create a topic, find its offsets, read its messages completely, and send them with
confirmation."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from fairlead.backends.kafka.endpoint import KafkaEndpoint, ignore_error, kept_offsets, reason
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.stream.messages import Message, read

PARTITIONS = 4
"""Default number of partitions of a new topic."""

CONFIRM_SECONDS = 30.0
"""Seconds after which an unconfirmed message has failed; it may still arrive."""

RESPONSE_SECONDS = 15.0
"""Longest wait for a response of Kafka, in seconds."""

_QUIET_SECONDS = 30.0
"""Seconds without a message after which reading a partition fails, although Kafka reports more
messages in it."""

_STOP_SECONDS = 2.0
"""Longest wait of a call for messages in flight after a stop, in seconds."""

_RETRY_SECONDS = 0.1
_TRANSIENT_ERRORS = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
"""Errors of a new topic, a new leader or a broker that has just started, after which a call is
retried."""

_PAGE = 10_000
"""Maximum number of messages in one poll of the consumer."""


class Topic:
    """A Kafka topic. Each call opens and closes its own connection."""

    def __init__(self, endpoint: KafkaEndpoint, name: str) -> None:
        self.endpoint = endpoint
        self.name = name

    @property
    def location(self) -> str:
        """Name of the topic and address of its server, for logs and errors."""
        return f"topic {self.name}, {self.endpoint.location}"

    def partitions(self) -> int:
        """Return the number of partitions. Raise ConfigurationError when the topic does not exist
        or Kafka refuses, and StoreUnavailable."""
        with self.endpoint.asking() as admin:
            found = admin.list_topics(self.name, timeout=RESPONSE_SECONDS).topics[self.name]
        if found.error is None:
            return len(found.partitions)
        if found.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise ConfigurationError(
                f"{self.location}: the topic does not exist; `fairlead pipeline relay` creates it"
            )
        raise StoreUnavailable(f"{self.location}: {found.error.str()}")

    def extents(self, partitions: int | None = None) -> dict[int, tuple[int, int]]:
        """Return (first offset, offset of the next message) of each partition. `partitions`: number
        of partitions; None to ask Kafka. Raise ConfigurationError if the topic does not exist, and
        StoreUnavailable."""
        asked = [(self.name, n) for n in range(partitions or self.partitions())]
        until = time.monotonic() + RESPONSE_SECONDS
        with self._consumer() as consumer:
            while True:
                try:
                    found = kept_offsets(consumer, asked, RESPONSE_SECONDS)
                    return {n: extent for (_, n), extent in found.items()}
                except KafkaException as error:
                    if error.args[0].code() not in _TRANSIENT_ERRORS or time.monotonic() > until:
                        raise
                    time.sleep(_RETRY_SECONDS)  # until the broker knows the new topic

    def ends(self) -> dict[int, int]:
        """Return the offset of the next message of each partition. Raise the errors of
        `extents`."""
        return {n: end for n, (_, end) in self.extents().items()}

    def read(self, partition: int, start: int, end: int) -> Iterator[list[tuple[int, bytes]]]:
        """Yield pages of (offset, message) for all offsets in [start, end). Raise CheckFailed if
        Kafka no longer has one of the messages, and StoreUnavailable."""
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(self.name, partition, start)])
            until = time.monotonic() + _QUIET_SECONDS
            while start < end:
                page = []
                # `consume` returns after this number of messages or _RETRY_SECONDS.
                for message in consumer.consume(min(_PAGE, end - start), _RETRY_SECONDS):
                    error, offset = message.error(), message.offset()
                    if error is not None and error.code() != KafkaError._AUTO_OFFSET_RESET:
                        raise KafkaException(error)
                    if error is not None or offset != start:
                        raise self.lost(partition, start)
                    page.append((offset, message.value() or b""))
                    start = offset + 1
                if page:
                    yield page
                    until = time.monotonic() + _QUIET_SECONDS
                elif time.monotonic() > until:
                    raise StoreUnavailable(
                        f"{self.location}: partition {partition} returns no messages from offset"
                        f" {start} on"
                    )

    def lost(self, partition: int, offset: int) -> CheckFailed:
        """Return the error for an offset that Kafka no longer has."""
        return CheckFailed(
            f"{self.location}: partition {partition} no longer has offset {offset}, because the"
            " topic keeps messages for too short a time (retention.ms) or was created again. The"
            " store still has the attempts that are not in the lake. Export them with `fairlead"
            " pipeline ingest --take-over`, then start the stream with a new checkpoint"
        )

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        """Yield a consumer that neither joins its group nor commits offsets. Raise StoreUnavailable
        for an error of Kafka."""
        settings: Mapping[str, object] = {
            "group.id": self.endpoint.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "error_cb": ignore_error,
            "fetch.queue.backoff.ms": 20,
        }
        try:
            consumer = Consumer(self.endpoint.settings(settings))
            try:
                yield consumer
            finally:
                consumer.close()
        except KafkaException as error:
            raise StoreUnavailable(f"{self.endpoint.location}: {reason(error)}") from error


class AttemptsTopic(Topic):
    """The topic of finished attempts."""

    def __init__(self, endpoint: KafkaEndpoint) -> None:
        super().__init__(endpoint, endpoint.attempts)

    def ensure(self, partitions: int | None = None) -> int:
        """Create the topic if it does not exist, and return its number of partitions. Raise
        ConfigurationError if the topic has another number of partitions than `partitions` (None
        accepts any number), and StoreUnavailable."""
        count = self.endpoint.create_topic(
            self.name, partitions or PARTITIONS, {}, RESPONSE_SECONDS
        )
        if partitions not in (None, count):
            raise ConfigurationError(
                f"{self.location}: the topic has {count} partitions, not {partitions}, and this"
                " number cannot change; omit --partitions, or choose another prefix"
            )
        return count

    def last(self, partitions: int) -> list[Message]:
        """Return the last message of each partition that is not empty. `partitions`: number of
        partitions. Raise the errors of `read` and of `messages.read`."""
        return [
            read(value, f"{self.location}, partition {n}, offset {offset}", partitions)
            for n, (first, end) in self.extents(partitions).items()
            if first < end
            for page in self.read(n, end - 1, end)
            for offset, value in page
        ]


class Sender:
    """Sender of messages. Messages of one partition arrive in the order of the calls, if they
    arrive."""

    def __init__(self, endpoint: KafkaEndpoint, seconds: float, stops: threading.Event) -> None:
        """`seconds`: longest wait for a confirmation. `stops`: when set, `send` and `confirm` wait
        at most 2 s more, and then drop unsent messages."""
        self._endpoint = endpoint
        self._seconds = seconds
        self._stops = stops
        self._producer: Producer | None = None
        self._error: KafkaError | None = None

    def send(self, topic: str, partition: int, key: str, value: bytes) -> None:
        """Send a message. Raise StoreUnavailable when it cannot be sent; then send all messages
        since the last `confirm` again."""
        until = time.monotonic() + self._seconds
        while True:
            try:
                self._client().produce(topic, value, key, partition)
            except BufferError:
                self._client().poll(_RETRY_SECONDS)
                self._check(until)
            except KafkaException as error:
                self._fail(error.args[0].str())
            else:
                return

    def confirm(self) -> None:
        """Wait until every in-sync replica has all messages. Raise StoreUnavailable after the
        timeout, or if a message has failed."""
        if self._producer is None:
            return
        until = time.monotonic() + self._seconds
        while self._producer.flush(_RETRY_SECONDS):
            self._check(until)
        self._check(until)

    def close(self) -> None:
        """Close the producer; unconfirmed messages may not arrive."""
        producer, self._producer, self._error = self._producer, None, None
        if producer is not None:
            producer.purge()
            producer.flush(_RETRY_SECONDS)

    def _client(self) -> Producer:
        if self._producer is None:
            self._error = None
            self._producer = Producer(
                self._endpoint.producer_settings(
                    {
                        # Retries neither repeat nor reorder messages.
                        "enable.idempotence": True,
                        "acks": "all",
                        # No timeout for single messages, because one expired message would leave
                        # a gap. `_check` gives up all of them together.
                        "message.timeout.ms": 0,
                        "linger.ms": 5,
                        "compression.type": "lz4",
                        "delivery.report.only.error": True,
                        "on_delivery": self._reported,
                        "error_cb": ignore_error,
                    }
                )
            )
        return self._producer

    def _reported(self, error: KafkaError | None, _: KafkaMessage) -> None:
        if error is not None:
            self._error = error

    def _check(self, until: float) -> None:
        """Raise StoreUnavailable when a message has failed, or at the time `until`."""
        if self._error is not None:
            self._fail(self._error.str())
        if self._producer is not None and len(self._producer):
            now = time.monotonic()
            if now > until or (
                self._stops.is_set() and now > until - self._seconds + _STOP_SECONDS
            ):
                self._fail(
                    f"some messages were not sent within {self._seconds:g} s or before the stop"
                )

    def _fail(self, why: str) -> None:
        self.close()
        raise StoreUnavailable(f"{self._endpoint.location}: {why}")
