"""The topic of queue heartbeats: one heartbeat per message, as a JSON object. All heartbeats of a
queue are in one partition."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.core.sharding.partitions import partition_of
from fairlead.pipeline.incidents.heartbeat import encode
from fairlead.pipeline.incidents.heartbeats import StoreHeartbeats
from fairlead.pipeline.stream.topic import RESPONSE_SECONDS, Sender
from fairlead.ports.statements import Row

PARTITIONS = 1
"""Partitions of a new topic; heartbeats are few."""

SETTINGS = {"retention.ms": str(24 * 3_600_000)}
"""Settings of a new topic: Kafka keeps heartbeats for a day."""


def make_heartbeats_topic(endpoint: KafkaEndpoint) -> int:
    """Create a missing topic; return its number of partitions. Raise StoreUnavailable."""
    return endpoint.create_topic(endpoint.heartbeats, PARTITIONS, SETTINGS, RESPONSE_SECONDS)


class HeartbeatSender:
    """Sender of heartbeats beside the attempts of a relay (see
    `fairlead.pipeline.stream.relay.OnBatch`)."""

    def __init__(self, heartbeats: StoreHeartbeats, endpoint: KafkaEndpoint) -> None:
        self._heartbeats = heartbeats
        self._endpoint = endpoint
        self._partitions = 0

    def __call__(self, sender: Sender, attempts: Sequence[Row]) -> None:
        """Send the heartbeats that are due. Raise StoreUnavailable."""
        if not self._partitions:
            self._partitions = make_heartbeats_topic(self._endpoint)
        for heartbeat in self._heartbeats.read():
            sender.send(
                self._endpoint.heartbeats,
                partition_of(heartbeat.queue, 0, self._partitions),
                heartbeat.queue,
                encode(heartbeat),
            )
