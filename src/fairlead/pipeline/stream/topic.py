"""Kafka topics: create a topic, find its offsets, and read its messages completely."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fairlead.backends.kafka.endpoint import KafkaEndpoint, ignore_error, kept_offsets, reason
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.stream.messages import Message, read

PARTITIONS = 4
"""Default number of partitions of a new topic."""

RESPONSE_SECONDS = 15.0
"""Longest wait for a response of Kafka, in seconds."""

_QUIET_SECONDS = 30.0
"""Seconds without a message after which reading a partition fails, although Kafka reports more
messages in it."""

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
        """Return the number of partitions. Raise ConfigurationError when the topic does not exist,
        and StoreUnavailable."""
        try:
            metadata = (
                self.endpoint.admin()
                .list_topics(self.name, timeout=RESPONSE_SECONDS)
                .topics[self.name]
            )
        except KafkaException as error:
            raise StoreUnavailable(f"{self.endpoint.location}: {reason(error)}") from error
        if metadata.error is not None:
            if metadata.error.code() not in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._UNKNOWN_TOPIC,
            ):
                raise StoreUnavailable(f"{self.location}: {metadata.error.str()}")
            raise ConfigurationError(
                f"{self.location}: the topic does not exist; `fairlead pipeline relay` creates it"
            )
        return len(metadata.partitions)

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
        expected = start
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(self.name, partition, start)])
            until = time.monotonic() + _QUIET_SECONDS
            while expected < end:
                # `consume` returns after this number of messages or _RETRY_SECONDS.
                found = consumer.consume(min(_PAGE, end - expected), _RETRY_SECONDS)
                if found:
                    until = time.monotonic() + _QUIET_SECONDS
                elif time.monotonic() > until:
                    raise StoreUnavailable(
                        f"{self.location}: partition {partition} returns no messages from offset"
                        f" {expected} on"
                    )
                page = []
                for message in found:
                    error, offset, value = message.error(), message.offset(), message.value()
                    if error is not None:
                        if error.code() == KafkaError._AUTO_OFFSET_RESET:
                            raise self.lost(partition, expected)
                        raise KafkaException(error)
                    if offset != expected:
                        raise self.lost(partition, expected)
                    page.append((offset, value or b""))
                    expected = offset + 1
                if page:
                    yield page

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

    def check(self, message: Message, partitions: int) -> None:
        """Raise ConfigurationError if the message was sent when the topic had another number of
        partitions than now."""
        if message.partitions != partitions:
            raise ConfigurationError(
                f"{self.location}: the topic had {message.partitions} partitions and now has"
                f" {partitions}, so the attempts of one task are no longer in one partition; choose"
                " another prefix, or delete the topic and create it again"
            )

    def last(self, partitions: int) -> list[Message]:
        """Return the last message of each partition that is not empty. Raise the errors of
        `read`."""
        found = []
        for partition, (first, end) in self.extents(partitions).items():
            if first < end:
                for page in self.read(partition, end - 1, end):
                    found += [
                        read(value, f"{self.location}, partition {partition}, offset {n}")
                        for n, value in page
                    ]
        return found
