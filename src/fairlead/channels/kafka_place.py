"""Where Kafka is, and what is ours there: topics, partitions, a consumer group. A topic is a queue.

Through confluent-kafka (librdkafka).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.ports.trigger_channel import ChannelStatus, PartitionStatus

KNOWN = "kafka://[user:password@]host:9092[,host...]/[?prefix=fairlead.&reset=earliest|latest|4d&replication=3]"

ADMIN_SECONDS = 5.0
"""Kafka answers a question within so long, or is away."""

_LONGEST = 249
"""Characters of a topic's name."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Place:
    """Where Kafka is, and what is ours there."""

    brokers: str
    prefix: str = "fairlead."
    """Of the topics; also the name of the consumer group. One for each task store."""
    reset: str | float = "earliest"
    """Where a partition is read from of which no offset was ever committed: "earliest", "latest", or so many seconds back."""
    replication: int = -1
    """Copies of each partition; -1: as many as the brokers make by themselves."""
    client: Mapping[str, str] = field(default_factory=dict)
    """librdkafka's own settings, for whoever connects."""

    @classmethod
    def of(cls, url: str) -> Place:
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
            why = f"unknown option {', '.join(sorted(options))}" if options else "it names no broker, or a path"
            raise ConfigurationError(f"{where}: {why}; use {KNOWN} (an option with a dot is librdkafka's)")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,40}", prefix):
            raise ConfigurationError(
                f"{where}: prefix {prefix!r}: use 1 to 40 letters, digits, dots, dashes, underscores"
            )
        if not re.fullmatch(r"-1|[1-9]\d*", copies):
            raise ConfigurationError(f"{where}: replication {copies!r}: use a number of copies")
        place = cls(brokers, prefix, _reset(where, reset), int(copies), client)
        if client:
            try:
                place.admin()
            except (KafkaException, ValueError) as error:
                raise ConfigurationError(f"{where}: {reason(error)}") from None
        return place

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

    # topics -----------------------------------------------------------------------------------------------------------

    def ensure(self, queues: Mapping[str, int], seconds: float = ADMIN_SECONDS) -> None:
        """Make the topics that are missing, and those with fewer partitions larger. Raises StoreUnavailable."""
        wanted = {self.topic(queue): count for queue, count in queues.items()}
        try:
            admin = self.admin()
            there = admin.list_topics(timeout=seconds).topics
            missing = [topic for topic in wanted if topic not in there or there[topic].error is not None]
            small = [topic for topic in wanted if topic not in missing and len(there[topic].partitions) < wanted[topic]]
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
                    if error.args[0].code() not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_PARTITIONS):
                        raise
        except KafkaException as error:
            raise StoreUnavailable(f"{self.location}: {reason(error)}") from error

    def status(self, queues: Collection[str]) -> ChannelStatus:
        """Brokers, partitions with their owners, and what lags. Raises StoreUnavailable."""
        topics = {self.topic(queue): queue for queue in queues}
        try:
            admin = self.admin()
            about = admin.list_topics(timeout=ADMIN_SECONDS)
            places = [
                TopicPartition(topic, number)
                for topic in topics
                if topic in about.topics and about.topics[topic].error is None
                for number in sorted(about.topics[topic].partitions)
            ]
            timeout = {"request_timeout": ADMIN_SECONDS}
            group = admin.describe_consumer_groups([self.group], **timeout)[self.group].result()
            owners = {
                (place.topic, place.partition): member.client_id
                for member in group.members
                for place in member.assignment.topic_partitions
            }
            asked = ConsumerGroupTopicPartitions(self.group, places or None)
            committed = admin.list_consumer_group_offsets([asked], **timeout)[self.group].result().topic_partitions
            done = {(place.topic, place.partition): place.offset for place in committed}
            earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
            first = admin.list_offsets(dict.fromkeys(places, earliest), **timeout)
            last = admin.list_offsets(dict.fromkeys(places, latest), **timeout)
            brokers = len(about.brokers)
            return ChannelStatus(
                "1 broker" if brokers == 1 else f"{brokers} brokers",
                [
                    PartitionStatus(
                        topics[place.topic],
                        place.partition,
                        owners.get((place.topic, place.partition)),
                        last[place].result().offset
                        - max(first[place].result().offset, done.get((place.topic, place.partition), 0)),
                    )
                    for place in places
                ],
            )
        except KafkaException as error:
            raise StoreUnavailable(f"{self.location}: {reason(error)}") from error


# Asked for with every message.


@lru_cache(10_000)
def _topic(prefix: str, queue: str) -> str:
    name = prefix + re.sub(
        r"[^A-Za-z0-9_-]", lambda other: "".join(f".{byte:02x}" for byte in other[0].encode()), queue
    )
    if len(name) > _LONGEST:
        raise ConfigurationError(f"queue {queue!r}: its name is too long for a topic of Kafka")
    return name


@lru_cache(10_000)
def _queue(name: str) -> str:
    return re.sub(rb"\.([0-9a-f]{2})", lambda byte: bytes.fromhex(byte[1].decode()), name.encode()).decode()


def reason(error: Exception) -> str:
    """What went wrong, for people."""
    return str(error.args[0].str()) if isinstance(error, KafkaException) else str(error)


def _reset(where: str, text: str) -> str | float:
    """As in `Place.reset`; the sign of a time is ignored: it always goes back."""
    if text in ("earliest", "latest"):
        return text
    if found := re.fullmatch(r"[+-]?(\d+(?:\.\d+)?)([smhdw])", text):
        return float(found[1]) * _UNITS[found[2]]
    raise ConfigurationError(f"{where}: reset {text!r}: use earliest, latest, or a time as 90s, 15m, 12h, 4d, 2w")


def silent(error: KafkaError) -> None:
    """What it was asked for says what went wrong."""
