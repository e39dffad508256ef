"""Where Kafka is, and what is ours there: topics, partitions, a consumer group. A topic is a queue.

Through confluent-kafka (librdkafka).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.ports.trigger_channel import ChannelStatus, PartitionStatus

KNOWN = "kafka://[user:password@]host:9092[,host...]/[?prefix=fairlead.&reset=earliest|latest|4d&replication=3]"

ADMIN_SECONDS = 5.0
"""Kafka answers a question within so long, or is away."""

CLOSE_SECONDS = 15.0
"""For a consumer to say good-bye."""

PartitionId = tuple[str, int]
"""Topic and partition."""

_LONGEST = 249
"""Characters of a topic's name."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Extent(NamedTuple):
    """What is in a partition."""

    done: int
    """The first offset that is not committed."""
    end: int
    """The offset that the next message gets."""

    @property
    def left(self) -> int:
        """Messages that are not done with."""
        return max(0, self.end - self.done)


@dataclass(frozen=True)
class Endpoint:
    """Where Kafka is, and what is ours there."""

    brokers: str
    prefix: str = "fairlead."
    """Of the topics; also the name of the consumer group. One for each task store."""
    reset: str | float = "earliest"
    """Where a partition is read from of which no offset was ever committed: "earliest", "latest",
    or so many seconds back."""
    replication: int = -1
    """Copies of each partition; -1: as many as the brokers make by themselves."""
    client: Mapping[str, str] = field(default_factory=dict)
    """librdkafka's own settings, for whoever connects."""

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Raises ConfigurationError, without the password in its text."""
        parts = urlsplit(url)
        who, _, brokers = parts.netloc.rpartition("@")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        client = {key: options.pop(key) for key in list(options) if "." in key}
        if who:
            user, _, password = who.partition(":")
            client = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", **client}
            client |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
        prefix, reset = options.pop("prefix", cls.prefix), options.pop("reset", "earliest")
        copies = options.pop("replication", "-1")
        where = f"URL kafka://{brokers}{parts.path}"
        if not brokers or parts.path not in ("", "/") or options:
            why = (
                f"unknown option {', '.join(sorted(options))}"
                if options
                else "it names no broker, or a path"
            )
            raise ConfigurationError(
                f"{where}: {why}; use {KNOWN} (an option with a dot is librdkafka's)"
            )
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,40}", prefix):
            raise ConfigurationError(
                f"{where}: prefix {prefix!r}: use 1 to 40 letters, digits, dots, dashes,"
                " underscores"
            )
        if not re.fullmatch(r"-1|[1-9]\d*", copies):
            raise ConfigurationError(f"{where}: replication {copies!r}: use a number of copies")
        endpoint = cls(brokers, prefix, _reset(where, reset), int(copies), client)
        if client:
            try:
                endpoint.admin()
            except (KafkaException, ValueError) as error:
                raise ConfigurationError(f"{where}: {reason(error)}") from None
        return endpoint

    @property
    def location(self) -> str:
        """For people."""
        return f"Kafka at {self.brokers}"

    def topic(self, queue: str) -> str:
        """Of a queue. Raises ConfigurationError for a name that no topic can have."""
        return _topic(self.prefix, queue)

    def queue(self, topic: str) -> str:
        """Of a topic."""
        return _queue(topic[len(self.prefix) :])

    @property
    def log(self) -> Endpoint:
        """Where the logs of ordered queues are: topics and a group of their own. No name of a queue
        begins with ".lo" in a topic's name, so none of them is another queue's."""
        return replace(self, prefix=f"{self.prefix}task.log.")

    @property
    def attempts(self) -> str:
        """The topic of finished attempts (see `fairlead.pipeline.stream`). No queue's: in the name
        of a queue's topic two hexadecimal digits follow each dot, and "at" are none; and the logs'
        names begin otherwise."""
        return f"{self.prefix}task.attempts"

    @property
    def signs(self) -> str:
        """The topic of signs, for alerts (see `fairlead.pipeline.alerts`); nor is it a queue's."""
        return f"{self.prefix}task.signs"

    @property
    def group(self) -> str:
        """The consumer group of all nodes."""
        return self.prefix.rstrip("._-") or self.prefix

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Of a client of librdkafka: these, beside what all have."""
        return {
            "bootstrap.servers": self.brokers,
            "socket.nagle.disable": True,
            "topic.metadata.refresh.interval.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
            # Its errors reach us by callbacks and exceptions; what it prints by itself is noise.
            "log_level": 0,
            **self.client,
            **own,
        }

    def admin(self) -> AdminClient:
        """A client for topics and groups."""
        return AdminClient(self.settings({"error_cb": silent}))

    # topics ---------------------------------------------------------------------------------------

    def ensure(self, queues: Mapping[str, int], seconds: float = ADMIN_SECONDS) -> None:
        """Make the topics that are missing, and those with fewer partitions larger. Raises
        StoreUnavailable."""
        wanted = {self.topic(queue): count for queue, count in queues.items()}
        try:
            admin = self.admin()
            there = admin.list_topics(timeout=seconds).topics
            missing = [
                topic for topic in wanted if topic not in there or there[topic].error is not None
            ]
            small = [
                topic
                for topic in wanted
                if topic not in missing and len(there[topic].partitions) < wanted[topic]
            ]
            answers: list[Any] = []
            if missing:
                news = [NewTopic(topic, wanted[topic], self.replication) for topic in missing]
                answers += admin.create_topics(news, request_timeout=seconds).values()
            if small:
                grown = [NewPartitions(topic, wanted[topic]) for topic in small]
                answers += admin.create_partitions(grown, request_timeout=seconds).values()
            for answer in answers:
                try:
                    answer.result()
                except KafkaException as error:
                    # Somebody else was quicker: to make it, or to make it larger.
                    if error.args[0].code() not in (
                        KafkaError.TOPIC_ALREADY_EXISTS,
                        KafkaError.INVALID_PARTITIONS,
                    ):
                        raise
        except KafkaException as error:
            raise StoreUnavailable(f"{self.location}: {reason(error)}") from error

    def settle(
        self, queue: str, partitions: int, config: Mapping[str, str], seconds: float = ADMIN_SECONDS
    ) -> None:
        """Make the queue's topic, so configured, if it is missing; it keeps its number of
        partitions. Raises ConfigurationError when it has another one, and StoreUnavailable."""
        topic = self.topic(queue)
        if (count := self.made(topic, partitions, config, seconds)) != partitions:
            raise ConfigurationError(
                f"queue {queue!r}: its topic {topic} at {self.location} has {count} partitions, and"
                f" ordered queues keep theirs: declare it with partitions={count}, or give the log"
                " another prefix"
            )

    def made(
        self, topic: str, partitions: int, config: Mapping[str, str], seconds: float = ADMIN_SECONDS
    ) -> int:
        """Make the topic, so configured, if it is missing; answers how many partitions it has.
        Raises StoreUnavailable."""
        deadline = time.monotonic() + seconds
        try:
            admin = self.admin()
            while True:
                about = admin.list_topics(timeout=seconds).topics.get(topic)
                if about is not None and about.error is None:
                    return len(about.partitions)
                new = NewTopic(topic, partitions, self.replication, config=dict(config))
                try:
                    admin.create_topics([new], request_timeout=seconds)[topic].result()
                    return partitions
                except KafkaException as error:
                    # Somebody else is quicker: it will be listed in a moment.
                    if (
                        error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS
                        or time.monotonic() > deadline
                    ):
                        raise
        except KafkaException as error:
            raise StoreUnavailable(f"{self.location}: {reason(error)}") from error

    def trim(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Delete what lies below these offsets, by topic and partition. Raises StoreUnavailable."""
        if not offsets:
            return
        partitions = [TopicPartition(*at, offset) for at, offset in offsets.items()]
        try:
            admin = self.admin()  # without it, its answers never come
            for answer in admin.delete_records(partitions, request_timeout=ADMIN_SECONDS).values():
                answer.result()
        except KafkaException as error:
            raise StoreUnavailable(f"{self.location}: {reason(error)}") from error

    def status(self, queues: Collection[str]) -> ChannelStatus:
        """Brokers, partitions with their owners, and what lags. Raises StoreUnavailable."""
        topics = {self.topic(queue): queue for queue in queues}
        try:
            admin = self.admin()
            about = admin.list_topics(timeout=ADMIN_SECONDS)
            partitions = [
                TopicPartition(topic, number)
                for topic in topics
                if topic in about.topics and about.topics[topic].error is None
                for number in sorted(about.topics[topic].partitions)
            ]
            timeout = {"request_timeout": ADMIN_SECONDS}
            group = admin.describe_consumer_groups([self.group], **timeout)[self.group].result()
            owners = {
                (at.topic, at.partition): member.client_id
                for member in group.members
                for at in member.assignment.topic_partitions
            }
            found = self._extents([(at.topic, at.partition) for at in partitions])
            brokers = len(about.brokers)
            return ChannelStatus(
                "1 broker" if brokers == 1 else f"{brokers} brokers",
                [
                    PartitionStatus(
                        topics[at.topic],
                        at.partition,
                        owners.get((at.topic, at.partition)),
                        found[at.topic, at.partition].left,
                    )
                    for at in partitions
                ],
            )
        except KafkaException as error:
            raise StoreUnavailable(f"{self.location}: {reason(error)}") from error

    def _extents(self, partitions: Collection[PartitionId]) -> dict[PartitionId, Extent]:
        """Asked by a consumer that reads nothing."""
        if not partitions:
            return {}
        consumer = Consumer(
            self.settings({"group.id": self.group, "enable.auto.commit": False, "error_cb": silent})
        )
        try:
            return extents(consumer, partitions)
        finally:
            consumer.close()


def extents(consumer: Consumer, partitions: Iterable[PartitionId]) -> dict[PartitionId, Extent]:
    """Of these partitions. Where nothing was committed, all is to be done from the beginning.
    Raises KafkaException.

    A consumer asks: librdkafka 2.16 crashes when an administrative client asks for what a group has
    committed and its coordinator has just moved, and so it may when such a client commits while the
    broker goes away."""
    found = {}
    for at in consumer.committed([TopicPartition(*at) for at in partitions], timeout=ADMIN_SECONDS):
        if at.error is not None:
            raise KafkaException(at.error)
        first, end = consumer.get_watermark_offsets(at, timeout=ADMIN_SECONDS) or (0, 0)
        found[at.topic, at.partition] = Extent(max(first, at.offset), end)
    return found


# Asked for with every message.


@lru_cache(10_000)
def _topic(prefix: str, queue: str) -> str:
    name = prefix + re.sub(
        r"[^A-Za-z0-9_-]",
        lambda other: "".join(f".{byte:02x}" for byte in other[0].encode()),
        queue,
    )
    if len(name) > _LONGEST:
        raise ConfigurationError(f"queue {queue!r}: its name is too long for a topic of Kafka")
    return name


@lru_cache(10_000)
def _queue(name: str) -> str:
    return re.sub(
        rb"\.([0-9a-f]{2})", lambda byte: bytes.fromhex(byte[1].decode()), name.encode()
    ).decode()


def reason(error: Exception) -> str:
    """What went wrong, for people."""
    return str(error.args[0].str()) if isinstance(error, KafkaException) else str(error)


def _reset(where: str, text: str) -> str | float:
    """As in `Endpoint.reset`; the sign of a time is ignored: it always goes back."""
    if text in ("earliest", "latest"):
        return text
    if found := re.fullmatch(r"[+-]?(\d+(?:\.\d+)?)([smhdw])", text):
        return float(found[1]) * _UNITS[found[2]]
    raise ConfigurationError(
        f"{where}: reset {text!r}: use earliest, latest, or a time as 90s, 15m, 12h, 4d, 2w"
    )


def silent(error: KafkaError) -> None:
    """What it was asked for says what went wrong."""
