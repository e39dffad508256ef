"""Topics of ours: made, measured, read without a gap; that of attempts, looked at where it ends."""

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
"""Of a topic that is made."""

ANSWER_SECONDS = 15.0
"""Kafka answers a question within so long, or is away."""

_QUIET_SECONDS = 30.0
"""A partition that has more and brings nothing for so long cannot be read."""

_AGAIN_SECONDS = 0.1
_IN_A_MOMENT = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
"""Of a topic that was just made, or whose broker has just started."""

_PAGE = 10_000
"""Messages that are taken from the consumer at once."""


class Topic:
    """Every call opens connections of its own, and closes them."""

    def __init__(self, place: KafkaEndpoint, name: str) -> None:
        self.place = place
        self.name = name

    @property
    def location(self) -> str:
        """For people."""
        return f"topic {self.name}, {self.place.location}"

    def partitions(self) -> int:
        """Raises ConfigurationError when it is not there, and StoreUnavailable."""
        try:
            about = (
                self.place.admin().list_topics(self.name, timeout=ANSWER_SECONDS).topics[self.name]
            )
        except KafkaException as error:
            raise StoreUnavailable(f"{self.place.location}: {reason(error)}") from error
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
        """By partition, the first offset that Kafka still has, and the one the next message gets;
        `partitions`, if it is known how many there are, as of a topic that was just made. Raises
        ConfigurationError when the topic is not there, and StoreUnavailable."""
        count = partitions or self.partitions()
        until = time.monotonic() + ANSWER_SECONDS
        with self._consumer() as consumer:
            while True:
                try:
                    return {
                        n: (
                            consumer.get_watermark_offsets(
                                TopicPartition(self.name, n), timeout=ANSWER_SECONDS
                            )
                            or (0, 0)
                        )
                        for n in range(count)
                    }
                except KafkaException as error:
                    if error.args[0].code() not in _IN_A_MOMENT or time.monotonic() > until:
                        raise
                    time.sleep(_AGAIN_SECONDS)  # nobody tells when a broker knows the topic

    def ends(self) -> dict[int, int]:
        """By partition, the offset the next message gets. Raises as `extents`."""
        return {n: end for n, (_, end) in self.extents().items()}

    def read(self, partition: int, start: int, end: int) -> Iterator[list[tuple[int, bytes]]]:
        """Messages of [start, end) with their offsets, page by page, and none left out. Raises
        CheckFailed when Kafka has some of them no longer, and StoreUnavailable."""
        expected = start
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(self.name, partition, start)])
            until = time.monotonic() + _QUIET_SECONDS
            while expected < end:
                # It waits for so many, also when there is an error among them.
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
        """What to say of an offset that Kafka does not have."""
        return CheckFailed(
            f"{self.location}: partition {partition} no longer has offset {offset}: the topic keeps"
            " messages for too short a time (retention.ms), or was made anew. The store still has"
            " what is not in the lake: `fairlead pipeline ingest --take-over` brings it from"
            " there; then begin the stream with a new checkpoint"
        )

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        """One that is told what to read, and joins no group."""
        own: Mapping[str, object] = {
            "group.id": self.place.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "error_cb": silent,
            "fetch.queue.backoff.ms": 20,
        }
        try:
            consumer = Consumer(self.place.settings(own))
            try:
                yield consumer
            finally:
                consumer.close()
        except KafkaException as error:
            raise StoreUnavailable(f"{self.place.location}: {reason(error)}") from error


class AttemptsTopic(Topic):
    """That of finished attempts at this place."""

    def __init__(self, place: KafkaEndpoint) -> None:
        super().__init__(place, place.attempts)

    def settle(self, partitions: int | None = None) -> int:
        """Make it if it is missing; answers how many partitions it has. Raises ConfigurationError
        when that are others than are wanted (None: any), and StoreUnavailable."""
        count = self.place.create_topic(self.name, partitions or PARTITIONS, {}, ANSWER_SECONDS)
        if partitions not in (None, count):
            raise ConfigurationError(
                f"{self.location}: it has {count} partitions, not {partitions}, and must keep them:"
                " leave out --partitions, or give another prefix"
            )
        return count

    def check(self, message: Message, partitions: int) -> None:
        """Raises ConfigurationError when the topic had another number of partitions when this was
        sent."""
        if message.partitions != partitions:
            raise ConfigurationError(
                f"{self.location}: it had {message.partitions} partitions and now has {partitions},"
                " so that a task's attempts no longer follow each other in one of them: give"
                " another prefix, or make the topic anew"
            )

    def last(self, partitions: int) -> list[Message]:
        """The last message of each partition that has any. Raises as `read`."""
        found = []
        for partition, (first, end) in self.extents(partitions).items():
            if first < end:
                for page in self.read(partition, end - 1, end):
                    found += [
                        read(value, f"{self.location}, partition {partition}, offset {n}")
                        for n, value in page
                    ]
        return found
