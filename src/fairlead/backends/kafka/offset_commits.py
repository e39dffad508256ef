"""Commits of offsets that a consumer sends in the background, until Kafka has confirmed them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, TopicPartition

from fairlead.backends.kafka.endpoint import PartitionId
from fairlead.backends.kafka.outage_log import KafkaOutageLog

COMMIT_EVERY = 1.0
"""Seconds between two commits of offsets."""

KEEP_EVERY = 1800.0
"""Seconds between two commits of the offset of a quiet partition, since brokers expire old ones;
also between two deletions of messages that are done."""


class OffsetCommits:
    """Offsets that Kafka has not confirmed. `on_commit` is a callback of the consumer."""

    def __init__(self, outages: KafkaOutageLog, now: float) -> None:
        """`now`: monotonic seconds, as in all methods."""
        self._outages = outages
        self._send_at = now
        self._keep_at = now + KEEP_EVERY
        self._lock = threading.Lock()
        self._open: dict[PartitionId, int] = {}
        self.is_under_way = False
        """True while librdkafka is sending a commit."""

    def __len__(self) -> int:
        return len(self._open)

    def is_due(self, now: float) -> bool:
        """Return whether to send, once every COMMIT_EVERY seconds."""
        if now < self._send_at:
            return False
        self._send_at = now + COMMIT_EVERY
        return True

    def is_renewal_due(self, now: float) -> bool:
        """Return whether to renew the offsets of quiet partitions, once every KEEP_EVERY
        seconds."""
        if now < self._keep_at:
            return False
        self._keep_at = now + KEEP_EVERY
        return True

    def add(self, partition: PartitionId, through: int) -> None:
        """Let everything below this offset be committed."""
        with self._lock:
            self._open[partition] = through

    def renew(self, done: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Commit these offsets again, except for partitions with a newer commit; return the renewed
        ones."""
        with self._lock:
            quiet = {
                partition: through
                for partition, through in done.items()
                if partition not in self._open
            }
            self._open |= quiet
            return quiet

    def unconfirmed(self) -> dict[PartitionId, int]:
        """Return the offsets that are not confirmed."""
        with self._lock:
            return dict(self._open)

    def send(self, consumer: Consumer) -> None:
        """Send a commit, unless there is nothing to commit or one is under way. Raise
        KafkaException if the client refuses."""
        if self.is_under_way:
            return
        if offsets := [
            TopicPartition(*partition, at) for partition, at in self.unconfirmed().items()
        ]:
            consumer.commit(offsets=offsets, asynchronous=True)
            self.is_under_way = True

    def on_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """Record the end of a commit. Called when the consumer is polled."""
        self.is_under_way = False
        with self._lock:
            for at in offsets:
                partition = (at.topic, at.partition)
                if error is None and at.error is None and self._open.get(partition) == at.offset:
                    del self._open[partition]
        if why := error or next((at.error for at in offsets if at.error is not None), None):
            self._outages.report(why.str())
