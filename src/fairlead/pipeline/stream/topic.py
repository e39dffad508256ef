"""Topics: create and measure them, read them without a gap, and read the last attempts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fairlead.backends.kafka.endpoint import KafkaEndpoint, reason, silent
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.stream.messages import Message, read

PARTITIONS = 4
"""Partitions of a new topic."""

RESPONSE_SECONDS = 15.0
"""Seconds for a response of Kafka, after which it is away."""

_QUIET_SECONDS = 30.0
"""Seconds without messages after which a partition that has more cannot be read."""

_AGAIN_SECONDS = 0.1
_IN_A_MOMENT = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
"""Seconds to wait for a new topic, or a broker that just started."""

_PAGE = 10_000
"""Messages in one poll of the consumer."""


class Topic:
    """Topic whose calls open and close their own connections."""

    def __init__(self, endpoint: KafkaEndpoint, name: str) -> None:
        self.endpoint = endpoint
        self.name = name

    @property
    def location(self) -> str:
        """Location of the topic, for people."""
        return f"topic {self.name}, {self.endpoint.location}"

    def partitions(self) -> int:
        """Return the number of partitions. Raise ConfigurationError without the topic, and
        StoreUnavailable."""
        try:
            about = (
                self.endpoint.admin()
                .list_topics(self.name, timeout=RESPONSE_SECONDS)
                .topics[self.name]
            )
        except KafkaException as error:
            raise StoreUnavailable(f"{self.endpoint.location}: {reason(error)}") from error
        if about.error is not None:
            if about.error.code() not in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._UNKNOWN_TOPIC,
            ):
                raise StoreUnavailable(f"{self.location}: {about.error.str()}")
            raise ConfigurationError(
                f"{self.location}: there is none; `fairlead pipeline relay` makes it"
            )
        return len(about.partitions)

    def extents(self, partitions: int | None = None) -> dict[int, tuple[int, int]]:
        """Return the first and the next offset by partition. `partitions` is the known number, for
        example of a new topic. Raise ConfigurationError without the topic, and StoreUnavailable."""
        count = partitions or self.partitions()
        until = time.monotonic() + RESPONSE_SECONDS
        with self._consumer() as consumer:
            while True:
                try:
                    return {
                        n: (
                            consumer.get_watermark_offsets(
                                TopicPartition(self.name, n), timeout=RESPONSE_SECONDS
                            )
                            or (0, 0)
                        )
                        for n in range(count)
                    }
                except KafkaException as error:
                    if error.args[0].code() not in _IN_A_MOMENT or time.monotonic() > until:
                        raise
                    time.sleep(_AGAIN_SECONDS)  # no event announces that a broker knows the topic

    def ends(self) -> dict[int, int]:
        """Return the next offset by partition. Raise like `extents`."""
        return {n: end for n, (_, end) in self.extents().items()}

    def read(self, partition: int, start: int, end: int) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the messages of [start, end) with their offsets, page by page and without a gap.
        Raise CheckFailed when Kafka has dropped some, and StoreUnavailable."""
        expected = start
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(self.name, partition, start)])
            until = time.monotonic() + _QUIET_SECONDS
            while expected < end:
                # The consumer waits for the whole number, also after an error.
                found = consumer.consume(min(_PAGE, end - expected), _AGAIN_SECONDS)
                if found:
                    until = time.monotonic() + _QUIET_SECONDS
                elif time.monotonic() > until:
                    raise StoreUnavailable(
                        f"{self.location}: partition {partition} brings nothing from {expected} on"
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
        """Return the error for an offset that Kafka does not have."""
        return CheckFailed(
            f"{self.location}: partition {partition} no longer has offset {offset}: the topic keeps"
            " messages for too short a time (retention.ms), or was made anew. The store still has"
            " what is not in the lake: `fairlead pipeline ingest --take-over` brings it from"
            " there; then begin the stream with a new checkpoint"
        )

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        """Return a consumer with assigned partitions and no group."""
        own: Mapping[str, object] = {
            "group.id": self.endpoint.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "error_cb": silent,
            "fetch.queue.backoff.ms": 20,
        }
        try:
            consumer = Consumer(self.endpoint.settings(own))
            try:
                yield consumer
            finally:
                consumer.close()
        except KafkaException as error:
            raise StoreUnavailable(f"{self.endpoint.location}: {reason(error)}") from error


class AttemptsTopic(Topic):
    """Topic of finished attempts."""

    def __init__(self, endpoint: KafkaEndpoint) -> None:
        super().__init__(endpoint, endpoint.attempts)

    def settle(self, partitions: int | None = None) -> int:
        """Create a missing topic; return its number of partitions. Raise ConfigurationError for
        another number than wanted (None: any), and StoreUnavailable."""
        count = self.endpoint.create_topic(
            self.name, partitions or PARTITIONS, {}, RESPONSE_SECONDS
        )
        if partitions not in (None, count):
            raise ConfigurationError(
                f"{self.location}: it has {count} partitions, not {partitions}, and must keep them:"
                " leave out --partitions, or give another prefix"
            )
        return count

    def check(self, message: Message, partitions: int) -> None:
        """Raise ConfigurationError when the topic had another number of partitions when this was
        sent."""
        if message.partitions != partitions:
            raise ConfigurationError(
                f"{self.location}: it had {message.partitions} partitions and now has {partitions},"
                " so that a task's attempts no longer follow each other in one of them: give"
                " another prefix, or make the topic anew"
            )

    def last(self, partitions: int) -> list[Message]:
        """Return the last message of each partition that has one. Raise like `read`."""
        found = []
        for partition, (first, end) in self.extents(partitions).items():
            if first < end:
                for page in self.read(partition, end - 1, end):
                    found += [
                        read(value, f"{self.location}, partition {partition}, offset {n}")
                        for n, value in page
                    ]
        return found
