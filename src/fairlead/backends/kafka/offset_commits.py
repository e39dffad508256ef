"""Offset commits of a consumer: send them in the background, and again until Kafka confirms
them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, TopicPartition

from fairlead.backends.kafka.endpoint import PartitionId
from fairlead.backends.kafka.outage_log import KafkaOutageLog

COMMIT_EVERY = 1.0
"""Seconds between two commits of offsets."""

KEEP_EVERY = 1800.0
"""Seconds between two commits of the offset of a quiet partition, because brokers expire offsets
without commits; also seconds between two deletions of processed messages."""


class OffsetCommits:
    """Offsets to commit that Kafka has not confirmed yet. Pass `on_commit` to the consumer as its
    callback."""

    def __init__(self, outages: KafkaOutageLog, now: float) -> None:
        """`now`: monotonic seconds, here and in all methods."""
        self._outages = outages
        self._send_at = now
        self._keep_at = now + KEEP_EVERY
        self._lock = threading.Lock()
        self._unconfirmed: dict[PartitionId, int] = {}
        self.is_under_way = False
        """True while librdkafka is sending a commit."""

    def __len__(self) -> int:
        return len(self._unconfirmed)

    def is_due(self, now: float) -> bool:
        """Return True once every COMMIT_EVERY seconds, when the caller should send a commit."""
        if now < self._send_at:
            return False
        self._send_at = now + COMMIT_EVERY
        return True

    def is_renewal_due(self, now: float) -> bool:
        """Return True once every KEEP_EVERY seconds, when the caller should renew the offsets of
        quiet partitions."""
        if now < self._keep_at:
            return False
        self._keep_at = now + KEEP_EVERY
        return True

    def add(self, partition: PartitionId, end: int) -> None:
        """Commit `end` for this partition with the next `send`: all messages below it are
        processed."""
        with self._lock:
            self._unconfirmed[partition] = end

    def renew(self, done: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Commit the offsets `done` again with the next `send`, except in partitions with an
        unconfirmed commit. Return the offsets that will be committed again."""
        with self._lock:
            quiet = {
                partition: end
                for partition, end in done.items()
                if partition not in self._unconfirmed
            }
            self._unconfirmed |= quiet
            return quiet

    def unconfirmed(self) -> dict[PartitionId, int]:
        """Return the offsets that Kafka has not confirmed yet."""
        with self._lock:
            return dict(self._unconfirmed)

    def send(self, consumer: Consumer) -> None:
        """Send one commit of all unconfirmed offsets. Do nothing if there are none, or if a commit
        is under way. Raise KafkaException if the client refuses the commit."""
        if self.is_under_way:
            return
        if offsets := [
            TopicPartition(*partition, at) for partition, at in self.unconfirmed().items()
        ]:
            consumer.commit(offsets=offsets, asynchronous=True)
            self.is_under_way = True

    def on_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """Drop the offsets that Kafka confirmed, and report an error. The consumer calls this
        method during a poll, when a commit has ended."""
        self.is_under_way = False
        with self._lock:
            for at in offsets:
                partition = (at.topic, at.partition)
                if (
                    error is None
                    and at.error is None
                    and self._unconfirmed.get(partition) == at.offset
                ):
                    del self._unconfirmed[partition]
        if why := error or next((at.error for at in offsets if at.error is not None), None):
            self._outages.report(why.str())
