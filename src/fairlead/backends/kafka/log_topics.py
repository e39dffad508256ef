"""The topics of the task log: created well, and checked before they are used, because an entry must
not be lost before a worker has read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from fairlead.backends.kafka.endpoint import ADMIN_SECONDS, KafkaEndpoint
from fairlead.backends.kafka.prefix_owner import PrefixOwner
from fairlead.backends.kafka.sender import LARGEST
from fairlead.errors import ConfigurationError, StoreUnavailable, UnknownQueue

TOPIC = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(LARGEST),
}
"""Settings of the topics that we create. Messages do not expire; the reader deletes processed
messages."""

_MIN_IN_SYNC = "min.insync.replicas"


class _Topic(NamedTuple):
    """A topic of the log as it is."""

    partitions: int
    copies: int
    """Least number of copies of a partition."""
    in_sync: int
    """Least number of copies in sync of a partition."""
    leaderless: int
    """Number of partitions without a leader."""
    settings: Mapping[str, str]
    """Settings that this process may read; empty if it may read none."""


class LogTopics:
    """The topics of the logs of one application, for any thread. Each method raises
    StoreUnavailable while Kafka is unavailable, and ConfigurationError if it refuses."""

    def __init__(
        self, endpoint: KafkaEndpoint, owner: PrefixOwner, partitions: Mapping[str, int]
    ) -> None:
        """`partitions`: number of partitions of each declared queue. Its topic may have more,
        because Kafka cannot take partitions away."""
        self._endpoint = endpoint
        self._owner = owner
        self._partitions = partitions

    def ensure(self, queue: str, partitions: int = 0) -> Sequence[str]:
        """Create the topic of a queue if it is missing, and check it; return what people should
        know about it. Raise ConfigurationError if the prefix belongs to another application, if the
        topic has too few partitions, or if it would lose entries; UnknownQueue if the
        queue is neither declared nor in the log."""
        endpoint, topic = self._endpoint, self._endpoint.topic(queue)
        self._owner.require()
        if endpoint.partitions_of(topic) is None:
            if queue not in self._partitions:
                raise UnknownQueue(
                    f"queue {queue!r} is not declared here and has no topic at {endpoint.location}"
                )
            self._create(topic, max(partitions, self._partitions[queue]))
        return self._checked(queue)

    def check(self, queue: str) -> Sequence[str]:
        """Check the topic of a queue as `ensure` does, but create nothing. Also raise
        StoreUnavailable if the topic accepts no entry now."""
        topic = self._endpoint.topic(queue)
        # First, because the group gives no response while its broker is down.
        if shortage := self.shortage(topic):
            raise StoreUnavailable(shortage)
        self._owner.check()
        self._endpoint.check_rights([topic])
        if self.count(queue) is None:
            return ()
        return self._checked(queue)

    def widen(self, queue: str, partitions: int) -> None:
        """Give the topic of a queue this number of partitions at least; create it if it is
        missing. Raise as `ensure` does."""
        self._owner.require()
        if self.count(queue) is None:
            self._create(self._endpoint.topic(queue), partitions)
        self._endpoint.ensure({queue: partitions})

    def shortage(self, topic: str, seconds: float = ADMIN_SECONDS) -> str | None:
        """Return why a topic accepts no entry now, with the cure; None if nothing is known.
        `seconds`: longest wait for each response. librdkafka tries an append again until its time
        is over, and then names no cause."""
        found = self._topic(topic, seconds)
        if found is None:
            return None
        where = f"{self._endpoint.location}: the topic {topic}"
        cure = "start the brokers that are down"
        if found.leaderless:
            return f"{where} has no leader for {found.leaderless} of its partitions: {cure}"
        least = int(found.settings.get(_MIN_IN_SYNC, 1))
        if found.in_sync < min(least, found.copies):
            have = _copies(found.in_sync)
            return f"{where} has {have} in sync and {_MIN_IN_SYNC}={least}: {cure}"
        return None

    def count(self, queue: str) -> int | None:
        """Return the number of partitions in the topic of a queue; None if it has no topic."""
        return self._endpoint.partitions_of(self._endpoint.topic(queue))

    def _create(self, topic: str, partitions: int) -> None:
        endpoint = self._endpoint
        config = dict(TOPIC)
        if endpoint.replication > 0:
            config[_MIN_IN_SYNC] = str(_in_sync(endpoint.replication))
        endpoint.create_topic(topic, partitions, config)
        found = self._topic(topic)
        if endpoint.replication > 0 or found is None:
            return
        wanted = _in_sync(found.copies)  # the brokers have chosen the number of copies
        if int(found.settings.get(_MIN_IN_SYNC, wanted)) != wanted:
            entry = ConfigEntry(
                _MIN_IN_SYNC, str(wanted), incremental_operation=AlterConfigOpType.SET
            )
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            with endpoint.asking() as admin:
                changes = admin.incremental_alter_configs([resource], request_timeout=ADMIN_SECONDS)
                for change in changes.values():
                    change.result()

    def _checked(self, queue: str) -> Sequence[str]:
        topic = self._endpoint.topic(queue)
        found = self._topic(topic)
        if found is None:
            return ()  # deleted just now: the next append or read creates it
        where = f"queue {queue!r}: its topic {topic} at {self._endpoint.location}"
        declared = self._partitions.get(queue, found.partitions)
        if found.partitions < declared:
            raise ConfigurationError(
                f"{where} has {found.partitions} partitions and the queue is declared with"
                f" {declared}: declare it with the number that `fairlead ordered --queue {queue}`"
                " shows, or stop its workers and move its tasks by `fairlead ordered repartition`"
            )
        alter = (
            f"kafka-configs.sh --bootstrap-server {self._endpoint.brokers} --alter --entity-type"
            f" topics --entity-name {topic} --add-config"
        )
        if losses := _losses(found):
            settings = ",".join(cure for _, cure in losses)
            raise ConfigurationError(
                f"{where} would lose entries that no worker has read:"
                f" {'; '.join(why for why, _ in losses)}: run `{alter} {settings}`"
            )
        if found.copies < self._endpoint.replication:
            raise ConfigurationError(
                f"{where} has {_copies(found.copies)}, and the URL asks for"
                f" replication={self._endpoint.replication}: add copies by"
                " kafka-reassign-partitions.sh, or correct the URL"
            )
        return [f"{where} {why}" for why in _warnings(found, alter)]

    def _topic(self, topic: str, seconds: float = ADMIN_SECONDS) -> _Topic | None:
        """Return what a topic is like; None if there is none."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        with self._endpoint.asking() as admin:
            about = admin.list_topics(timeout=seconds).topics.get(topic)
            if about is None or about.error is not None:
                return None
            partitions = about.partitions.values()
            copies = min(len(partition.replicas) for partition in partitions)
            in_sync = min(len(partition.isrs) for partition in partitions)
            leaderless = sum(partition.leader < 0 for partition in partitions)
            reads = admin.describe_configs([resource], request_timeout=seconds)
            try:
                entries = reads[resource].result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise
                entries = {}
            settings = {name: str(entry.value) for name, entry in entries.items()}
            return _Topic(len(partitions), copies, in_sync, leaderless, settings)


def _losses(topic: _Topic) -> list[tuple[str, str]]:
    """Return why a topic would lose entries, each with the setting that cures it."""
    found = []
    for name, unit in (("retention.ms", "milliseconds"), ("retention.bytes", "bytes")):
        if (value := topic.settings.get(name, "-1")) != "-1":
            found.append((f"{name}={value} deletes what exceeds these {unit}", f"{name}=-1"))
    if "compact" in (policy := topic.settings.get("cleanup.policy", "delete")):
        found.append(
            (f"cleanup.policy={policy} keeps one entry of each key", "cleanup.policy=delete")
        )
    unclean = "unclean.leader.election.enable"
    if topic.copies > 1 and topic.settings.get(unclean) == "true":
        found.append((f"{unclean}=true elects leaders without them", f"{unclean}=false"))
    return found


def _warnings(topic: _Topic, alter: str) -> list[str]:
    found = []
    if not topic.settings:
        found.append("cannot be checked: grant DescribeConfigs on it to the user of the URL")
    if topic.copies == 1:
        found.append(
            "has one copy, so that the loss of its broker loses entries: use replication=3 in the"
            " URL before the topic is created, or add copies by kafka-reassign-partitions.sh"
        )
    elif topic.copies > 2 and topic.settings.get(_MIN_IN_SYNC) == "1":
        found.append(
            f"has {_MIN_IN_SYNC}=1, so that the loss of one broker may lose entries: run `{alter}"
            f" {_MIN_IN_SYNC}=2`"
        )
    return found


def _in_sync(copies: int) -> int:
    """Return how many copies must have an entry before it is accepted. The topic must accept
    entries while one broker is down."""
    return min(2, max(1, copies - 1))


def _copies(number: int) -> str:
    return "one copy" if number == 1 else f"{number} copies"
