"""Requests to a real Kafka for the offsets of a topic with many partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from confluent_kafka import Consumer  # noqa: E402

from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.pipeline.stream.topic import AttemptsTopic  # noqa: E402
from services.kafka import KafkaServer  # noqa: E402

PARTITIONS = 100


class CountingEndpoint(KafkaEndpoint):
    """An endpoint whose clients report their statistics to `on_statistics`."""

    def settings(self, own: Any) -> dict[str, Any]:
        more = {"statistics.interval.ms": 50, "stats_cb": self.on_statistics}
        return super().settings({**own, **more}) if "group.id" in own else super().settings(own)

    def on_statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        sent = [broker["req"].get("ListOffsets", 0) for broker in brokers]
        reports.append(sum(sent))


reports: list[int] = []
"""Requests for offsets that a client had sent until each of its reports."""


class CountingTopic(AttemptsTopic):
    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        with super()._consumer() as consumer:
            yield consumer
            reports.clear()
            while not reports:
                consumer.poll(0.1)  # calls `on_statistics`


def test_the_offsets_of_100_partitions_take_two_requests(kafka_server: KafkaServer) -> None:
    topic = CountingTopic(CountingEndpoint.of(kafka_server.create_prefix()))
    assert topic.ensure(PARTITIONS) == PARTITIONS
    topic.extents()  # asks again until the broker knows the new topic
    assert topic.extents() == dict.fromkeys(range(PARTITIONS), (0, 0))
    assert reports[-1] == 2
