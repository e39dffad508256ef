"""The Kafka cluster of an application, and what Fairlead uses there: topics, partitions and a
consumer group. Each queue has one topic.

The client is confluent-kafka (librdkafka).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    NewPartitions,
    NewTopic,
)

from fairlead.backends.kafka.failures import Refusals, refusal
from fairlead.errors import ConfigurationError
from fairlead.ports.trigger_channel import ChannelStatus, PartitionStatus
from fairlead.urls import hosts_of, parameters_of, shown_url, split_url

KNOWN = "kafka://[user:password@]host:9092[,host...]/[?prefix=fairlead.&reset=earliest|latest|4d&replication=3]"

ADMIN_SECONDS = 5.0
"""Seconds without a response after which Kafka is unavailable."""

CLOSE_SECONDS = 15.0
"""Seconds that a consumer has to leave its group."""

BATCH_BYTES = 64 << 10
"""Bytes of a batch of several messages; `batch.size` in the URL sets another number. A broker
measures a batch by the greatest size of a message: one of 1 MB, the default of librdkafka, does not
fit into every topic."""

PartitionId = tuple[str, int]
"""Topic and partition."""

_PARAMETERS = ("prefix", "reset", "replication")
_OF_LIBRDKAFKA = re.compile(r"[a-z]+([._][a-z]+)*\.[a-z._]+")
"""Names of parameters that are settings of librdkafka."""

_LONGEST = 249
"""Characters of a topic's name, at most."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Extent(NamedTuple):
    """Range of the offsets in a partition that are not committed."""

    done: int
    """The first offset that is not committed."""
    end: int
    """The offset that the next message gets."""

    @property
    def left(self) -> int:
        """Number of messages that are not committed."""
        return max(0, self.end - self.done)


@dataclass(frozen=True)
class KafkaEndpoint:
    """A Kafka cluster, and the names that Fairlead uses there."""

    brokers: str
    prefix: str = "fairlead."
    """The beginning of topic names; also the name of the consumer group. Each task store needs its
    own."""
    reset: str | float = "earliest"
    """The start of a partition without any committed offset: "earliest", "latest", or a number of
    seconds back."""
    replication: int = -1
    """Copies of each partition; -1 leaves the number to the brokers."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings for librdkafka, by its own names."""

    @classmethod
    def of(cls, url: str) -> KafkaEndpoint:
        """Parse a URL. Raise ConfigurationError, without the password in its text, if it is no
        usable URL of Kafka."""
        parts, where = split_url(url), f"URL {shown_url(url)}"
        who, _, brokers = parts.netloc.rpartition("@")
        if not brokers or parts.path not in ("", "/"):
            raise ConfigurationError(f"{where}: it names no broker, or has a path; use {KNOWN}")
        options = parameters_of(
            where,
            parts,
            _PARAMETERS,
            is_known=lambda name: bool(_OF_LIBRDKAFKA.fullmatch(name)),
            otherwise=f"use {KNOWN} (one with a dot is a setting of librdkafka)",
        )
        client = {name: value for name, value in options.items() if "." in name}
        if who:
            user, _, password = who.partition(":")
            client = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", **client}
            client |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
        prefix, reset = options.get("prefix", cls.prefix), options.get("reset", "earliest")
        copies = options.get("replication", "-1")
        hosts_of(where, brokers, 9092)
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
        """The cluster, for people."""
        return f"Kafka at {self.brokers}"

    def topic(self, queue: str) -> str:
        """Return the topic of a queue. Raise ConfigurationError if its name is too long for one."""
        return _topic(self.prefix, queue)

    def queue(self, topic: str) -> str:
        """Return the queue of a topic."""
        return _queue(topic[len(self.prefix) :])

    @property
    def log(self) -> KafkaEndpoint:
        """The endpoint of the logs of ordered queues, with topics and a group of their own. Encoded
        queue names never contain ".lo", so no log has the topic of a queue."""
        return replace(self, prefix=f"{self.prefix}task.log.")

    @property
    def owner(self) -> str:
        """The topic that names the owner of the prefix (see `prefix_owner`). No queue has this
        topic: in a topic of a queue two hexadecimal digits follow each dot, and "ow" is not
        hexadecimal. The names of logs begin differently."""
        return f"{self.prefix}task.owner"

    @property
    def group(self) -> str:
        """The consumer group of all nodes."""
        return self.prefix.rstrip("._-") or self.prefix

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a client of librdkafka: `own` and the common ones."""
        return {
            "bootstrap.servers": self.brokers,
            "socket.nagle.disable": True,
            "topic.metadata.refresh.interval.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
            # Callbacks and exceptions report its errors; its own output is noise.
            "log_level": 0,
            **self.client,
            **own,
        }

    def producer_settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a producer: `own`, the common ones, and small batches."""
        return self.settings({"batch.size": self.client.get("batch.size", BATCH_BYTES), **own})

    def new_refusals(self) -> Refusals:
        """Return a record of refusals for a new client, whose `error_cb` it is."""
        uses_tls = self.client.get("security.protocol", "").upper() in ("SSL", "SASL_SSL")
        return Refusals(hosts_of("the URL of Kafka", self.brokers, 9092), uses_tls)

    def admin(self) -> AdminClient:
        """Return a client for topics and groups."""
        return AdminClient(self.settings({"error_cb": ignore_error}))

    @contextmanager
    def asking(self) -> Iterator[AdminClient]:
        """Give a client for topics and groups. Raise StoreUnavailable or ConfigurationError in
        place of the errors of Kafka."""
        refusals = self.new_refusals()
        admin = AdminClient(self.settings({"error_cb": refusals}))
        try:
            yield admin
        except KafkaException as error:
            admin.poll(0)  # calls `refusals` with the reason, if it was a refused login
            raise refusals.translate(error, self.location) from error

    # topics ---------------------------------------------------------------------------------------

    def ensure(self, queues: Mapping[str, int], seconds: float = ADMIN_SECONDS) -> None:
        """Create missing topics, and add partitions to those with too few. Raise StoreUnavailable
        while Kafka is unavailable, ConfigurationError if it refuses."""
        wanted = {self.topic(queue): count for queue, count in queues.items()}
        with self.asking() as admin:
            existing = admin.list_topics(timeout=seconds).topics
            missing = [
                topic
                for topic in wanted
                if topic not in existing or existing[topic].error is not None
            ]
            too_small = [
                topic
                for topic in wanted
                if topic not in missing and len(existing[topic].partitions) < wanted[topic]
            ]
            results: list[Any] = []
            if missing:
                news = [NewTopic(topic, wanted[topic], self.replication) for topic in missing]
                results += admin.create_topics(news, request_timeout=seconds).values()
            if too_small:
                grown = [NewPartitions(topic, wanted[topic]) for topic in too_small]
                results += admin.create_partitions(grown, request_timeout=seconds).values()
            for result in results:
                try:
                    result.result()
                except KafkaException as error:
                    # Another process has created or enlarged the topic first.
                    if error.args[0].code() not in (
                        KafkaError.TOPIC_ALREADY_EXISTS,
                        KafkaError.INVALID_PARTITIONS,
                    ):
                        raise

    def partitions_of(self, topic: str) -> int | None:
        """Return the number of partitions of a topic; None if there is no such topic. Raise
        StoreUnavailable while Kafka is unavailable, ConfigurationError if it refuses."""
        with self.asking() as admin:
            about = admin.list_topics(timeout=ADMIN_SECONDS).topics.get(topic)
            return None if about is None or about.error is not None else len(about.partitions)

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create the topic with this configuration if it is missing. Raise StoreUnavailable while
        Kafka is unavailable, ConfigurationError if it refuses."""
        deadline = time.monotonic() + ADMIN_SECONDS
        with self.asking() as admin:
            while True:
                about = admin.list_topics(timeout=ADMIN_SECONDS).topics.get(topic)
                if about is not None and about.error is None:
                    return
                new = NewTopic(topic, partitions, self.replication, config=dict(config))
                try:
                    admin.create_topics([new], request_timeout=ADMIN_SECONDS)[topic].result()
                    return
                except KafkaException as error:
                    # Another process is creating the topic: it will be listed in a moment.
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
                    if time.monotonic() > deadline:
                        # Kafka hides topics that we may not see, unless it is asked by name.
                        hidden = admin.list_topics(topic, timeout=ADMIN_SECONDS).topics[topic].error
                        raise KafkaException(hidden or error.args[0]) from error

    def trim(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Delete messages below these offsets, by topic and partition. Raise StoreUnavailable while
        Kafka is unavailable."""
        if not offsets:
            return
        partitions = [TopicPartition(*at, offset) for at, offset in offsets.items()]
        with self.asking() as admin:
            for result in admin.delete_records(partitions, request_timeout=ADMIN_SECONDS).values():
                result.result()

    def check_rights(self, topics: Collection[str]) -> None:
        """Check that this client may read and write the topics that exist, and may read as the
        group. Raise ConfigurationError that names the missing rights, StoreUnavailable while Kafka
        is unavailable."""
        timeout = {"request_timeout": ADMIN_SECONDS, "include_authorized_operations": True}
        missing = []
        with self.asking() as admin:
            found = admin.describe_topics(TopicCollection(list(topics)), **timeout)
            for topic, described in found.items():
                try:
                    granted = described.result().authorized_operations
                except KafkaException as error:
                    if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    raise
                missing += [
                    f"{right.name.capitalize()} on topic {topic}"
                    for right in (AclOperation.READ, AclOperation.WRITE)
                    if granted is not None and right not in granted
                ]
            about = admin.describe_consumer_groups([self.group], **timeout)[self.group].result()
            granted = about.authorized_operations
            if granted is not None and AclOperation.READ not in granted:
                missing.append(f"Read on group {self.group}")
        if missing:
            raise ConfigurationError(refusal(self.location, ", ".join(missing)))

    def status(self, queues: Collection[str]) -> ChannelStatus:
        """Return the number of brokers, and the partitions with their owners and lags. Raise
        StoreUnavailable while Kafka is unavailable, ConfigurationError if it refuses."""
        topics = {self.topic(queue): queue for queue in queues}
        self.check_rights(topics)
        with self.asking() as admin:
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

    def _extents(self, partitions: Collection[PartitionId]) -> dict[PartitionId, Extent]:
        """Return the extents of these partitions, by a consumer that reads no messages."""
        if not partitions:
            return {}
        consumer = Consumer(
            self.settings(
                {"group.id": self.group, "enable.auto.commit": False, "error_cb": ignore_error}
            )
        )
        try:
            return extents(consumer, partitions)
        finally:
            consumer.close()


def extents(consumer: Consumer, partitions: Iterable[PartitionId]) -> dict[PartitionId, Extent]:
    """Return the extents of these partitions. Without any commit, no message of a partition is
    done. Raise KafkaException if Kafka does not respond.

    A consumer asks for them, because an administrative client of librdkafka 2.16 crashes if it asks
    for the commits of a group whose coordinator has just moved, or commits while the broker stops.
    """
    asked = list(partitions)
    committed = consumer.committed([TopicPartition(*at) for at in asked], timeout=ADMIN_SECONDS)
    kept = kept_offsets(consumer, asked, ADMIN_SECONDS)
    found = {}
    for at in committed:
        if at.error is not None:
            raise KafkaException(at.error)
        first, end = kept[at.topic, at.partition]
        found[at.topic, at.partition] = Extent(max(first, at.offset), end)
    return found


def kept_offsets(
    consumer: Consumer, partitions: Iterable[PartitionId], seconds: float
) -> dict[PartitionId, tuple[int, int]]:
    """Return (first kept offset, offset of the next message) of each partition, by two requests to
    each broker. Raise KafkaException, also if Kafka does not respond within `seconds`."""
    asked = list(partitions)
    # Not one request for each partition, because each waits behind the consumer's fetch, up to half
    # a second, and takes a round trip of its own.
    first, end = (
        {
            (at.topic, at.partition): at
            for at in consumer.offsets_for_times(
                [TopicPartition(*at, instant) for at in asked], timeout=seconds
            )
        }
        for instant in (OFFSET_BEGINNING, OFFSET_END)
    )
    for answered in (*first.values(), *end.values()):
        if answered.error is not None:
            raise KafkaException(answered.error)
    return {at: (first[at].offset, end[at].offset) for at in asked}


# Cached, since both names are needed for every message.


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
    """Return the text of an error, for people."""
    return str(error.args[0].str()) if isinstance(error, KafkaException) else str(error)


def _reset(where: str, text: str) -> str | float:
    """Parse the option of `KafkaEndpoint.reset`. The sign of a time is ignored, since the time is
    always one before now."""
    if text in ("earliest", "latest"):
        return text
    if found := re.fullmatch(r"[+-]?(\d+(?:\.\d+)?)([smhdw])", text):
        return float(found[1]) * _UNITS[found[2]]
    raise ConfigurationError(
        f"{where}: reset {text!r}: use earliest, latest, or a time such as 90s, 15m, 12h, 4d, 2w"
    )


def ignore_error(error: KafkaError) -> None:
    """Ignore an error of a client whose calls report their own errors."""
