"""The topic of queue heartbeats: one JSON object a message, all of a queue in one partition."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.core.sharding.partitions import partition_of
from fairlead.pipeline.alerts.heartbeat import encode
from fairlead.pipeline.alerts.heartbeats import StoreHeartbeats
from fairlead.pipeline.stream.sender import Sender
from fairlead.pipeline.stream.topic import RESPONSE_SECONDS
from fairlead.ports.statements import Row

PARTITIONS = 1
"""Partitions of a new topic; heartbeats are few."""

KEPT = {"retention.ms": str(24 * 3_600_000)}
"""Settings of a new topic: heartbeats of more than a day ago are not needed."""


def make_heartbeats_topic(endpoint: KafkaEndpoint) -> int:
    """Create a missing topic; return its number of partitions. Raise StoreUnavailable."""
    return endpoint.create_topic(endpoint.heartbeats, PARTITIONS, KEPT, RESPONSE_SECONDS)


class HeartbeatsTo:
    """Sender of heartbeats beside the attempts of a relay (see
    `fairlead.pipeline.stream.relay.OnBatch`)."""

    def __init__(self, heartbeats: StoreHeartbeats, endpoint: KafkaEndpoint) -> None:
        self._heartbeats = heartbeats
        self._endpoint = endpoint
        self._partitions = 0

    def __call__(self, sender: Sender, attempts: Sequence[Row]) -> None:
        """Raise StoreUnavailable."""
        if not self._partitions:
            self._partitions = make_heartbeats_topic(self._endpoint)
        self._heartbeats.hear(attempts)
        for heartbeat in self._heartbeats.read():
            sender.send(
                self._endpoint.heartbeats,
                partition_of(heartbeat.queue, 0, self._partitions),
                heartbeat.queue,
                encode(heartbeat),
            )
